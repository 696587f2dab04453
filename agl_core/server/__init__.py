"""The store over HTTP.

:class:`LightningStoreServer` puts a store on a port; :mod:`agl_core.server.app` is its API as an
ASGI app; :mod:`agl_core.server.launcher` runs any ASGI app in a loop, a thread or processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core._lazy import lazy_names

if TYPE_CHECKING:
    from agl_core.server.app import StoreApp, StoreAppOptions
    from agl_core.server.launcher import PythonServerLauncher, PythonServerLauncherArgs
    from agl_core.server.store_server import LightningStoreServer
    from agl_core.server.tokens import mint_token

__all__ = [
    "LightningStoreServer",
    "PythonServerLauncher",
    "PythonServerLauncherArgs",
    "StoreApp",
    "StoreAppOptions",
    "mint_token",
]

# The launcher serves apps that are no store; it must not load the store's API with it.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "LightningStoreServer": "agl_core.server.store_server",
        "PythonServerLauncher": "agl_core.server.launcher",
        "PythonServerLauncherArgs": "agl_core.server.launcher",
        "StoreApp": "agl_core.server.app",
        "StoreAppOptions": "agl_core.server.app",
        "mint_token": "agl_core.server.tokens",
    },
)
