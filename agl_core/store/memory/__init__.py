"""The store that lives in memory: the default, and the reference for what a store does.

* :mod:`~agl_core.store.memory.store` - the store: locking, waiting, copies out (its reading half:
  :mod:`~agl_core.store.memory.reads`).
* :mod:`~agl_core.store.memory.state` - what is held, and the one way to change it.
* :mod:`~agl_core.store.memory.search` - how queries are answered.
* the rest - one data structure each.
"""

from agl_core.store.memory.store import InMemoryLightningStore

__all__ = ["InMemoryLightningStore"]
