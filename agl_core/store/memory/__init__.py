"""The store that lives in memory: the default, and the reference for what a store does.

* :mod:`~agl_core.store.memory.store` - the store: the engine on this backend.
* :mod:`~agl_core.store.memory.backend` - the tables, and how queries are answered.
* the rest - one data structure each.
"""

from agl_core.store.memory.store import InMemoryLightningStore

__all__ = ["InMemoryLightningStore"]
