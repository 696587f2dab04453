"""``agl doctor`` and ``agl plugins doctor``: what keeps a run from working, and what to do.

The functions run the checks in a program. Checks repair nothing; plugins add checks by the hook
``agl_check``.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
