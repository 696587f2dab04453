"""The store in memory: the default, and the reference for the behaviour of stores.

* :mod:`~agl_core.store._memory.store` - the store: the engine on this backend.
* :mod:`~agl_core.store._memory.backend` - the tables and the queries.
* the other modules - one data structure each.
"""

from agl_core.store._memory.store import InMemoryLightningStore

__all__ = ["InMemoryLightningStore"]
