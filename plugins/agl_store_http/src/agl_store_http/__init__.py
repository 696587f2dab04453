"""The store over HTTP: a server that puts any store on a port, and a client that is a store.

::

    server = LightningStoreServer(store, "127.0.0.1", 4747)
    await server.start()
    client = LightningStoreClient("http://127.0.0.1:4747")
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
