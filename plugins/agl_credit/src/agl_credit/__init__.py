"""Credit by turn: the advantage of each model call of a rollout, from the rollouts of its group.

Pure functions over NumPy arrays. A group is a list of :class:`Path`; each estimator returns the
advantages of every path's turns.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
