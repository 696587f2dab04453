"""The store over HTTP: a server that puts any store on a port, and a client that is a store.

::

    server = LightningStoreServer(store, "127.0.0.1", 4747)
    await server.start()
    client = LightningStoreClient("http://127.0.0.1:4747")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_serving import mint_token
    from agl_store_http.client import LightningStoreClient
    from agl_store_http.client.config import ClientConfig
    from agl_store_http.client.transport import Reply, Transport
    from agl_store_http.releasing import release_worker
    from agl_store_http.server.app import StoreApp, StoreAppOptions
    from agl_store_http.server.mounts import installed_apps
    from agl_store_http.server.store_server import LightningStoreServer

__all__ = [
    "ClientConfig",
    "LightningStoreClient",
    "LightningStoreServer",
    "Reply",
    "StoreApp",
    "StoreAppOptions",
    "Transport",
    "installed_apps",
    "mint_token",
    "release_worker",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ClientConfig": "agl_store_http.client.config",
        "LightningStoreClient": "agl_store_http.client",
        "LightningStoreServer": "agl_store_http.server.store_server",
        "Reply": "agl_store_http.client.transport",
        "StoreApp": "agl_store_http.server.app",
        "StoreAppOptions": "agl_store_http.server.app",
        "Transport": "agl_store_http.client.transport",
        "installed_apps": "agl_store_http.server.mounts",
        "mint_token": "agl_serving",
        "release_worker": "agl_store_http.releasing",
    },
)
