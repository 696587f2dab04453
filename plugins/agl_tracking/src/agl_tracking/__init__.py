"""The code that the experiment trackers of agl share: a run's events become calls that write."""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
