"""A model as judge: it grades conversations by a rubric, and its grades become rewards.

:func:`rescore` applies a judge, or any other scorer, to stored rollouts. Everything is imported on
first use, since the command's hooks are light.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
