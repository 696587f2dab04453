"""Replay of recorded rollouts: run an agent again without a model server, and compare.

::

    result = await replay(agent, rollout_id, store)
    assert result.same, result.divergence
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
