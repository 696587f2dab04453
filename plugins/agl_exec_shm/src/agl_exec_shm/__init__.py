"""The execution strategy ``shm``: algorithm and runners as threads of one process, over one store.

* :class:`SharedMemoryExecutionStrategy` - the strategy; :class:`SharedMemoryConfig` its options.
"""

from __future__ import annotations

from agl_exec_shm.config import SharedMemoryConfig
from agl_exec_shm.strategy import SharedMemoryExecutionStrategy

__all__ = ["SharedMemoryConfig", "SharedMemoryExecutionStrategy"]
