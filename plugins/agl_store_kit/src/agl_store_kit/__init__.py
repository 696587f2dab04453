"""What stores are built on: an engine with the rules of rollouts, and a port for databases.

* :class:`EngineStore` and :class:`StorageBackend` - the engine implements the store's contract
  once, a backend keeps the data. Most other names are for backends.
* :mod:`agl_store_kit.lifecycle` - the rules of rollouts, attempts and workers, as pure functions.
* :mod:`agl_store_kit.rows` - records as rows of a table, for backends of databases.
* :class:`OwnLoop`, :class:`NoticeFeed`, :class:`SharedClock` - for backends of databases: their
  client's event loop, notices between processes, and the database's clock.
* :class:`BatchingStore` - base of stores whose batches are the primitive.
* :class:`Pauses`, :func:`in_slices` - for long work that must not hold the event loop.
* :class:`LightningStoreThreaded` - one store for several threads.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
