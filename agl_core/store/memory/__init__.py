"""The store in memory: the default, and the reference for the behaviour of stores.

* :mod:`~agl_core.store.memory.store` - the store: the engine on this backend.
* :mod:`~agl_core.store.memory.backend` - the tables and the queries.
* the other modules - one data structure each.
"""

from agl_core.store.memory.store import InMemoryLightningStore

__all__ = ["InMemoryLightningStore"]
