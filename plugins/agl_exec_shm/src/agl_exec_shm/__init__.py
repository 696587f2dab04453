"""The execution strategy ``shm``: algorithm and runners as threads of one process, over one store.

* :class:`SharedMemoryExecutionStrategy` - the strategy; :class:`SharedMemoryConfig` its options.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
