"""Environments of Gymnasium in text form, for agents that are language models.

::

    agent = "gymnasium:FrozenLake-v1"    # in a train file
    Trainer(algorithm="grpo", …).fit("gymnasium:FrozenLake-v1")
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
