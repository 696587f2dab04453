"""Serve an ASGI app in the running event loop, in a thread, or in processes.

The store server and the LLM proxies are built on it, and share what every server needs: access
tokens, the guard against pages of foreign origins, sockets and stop signals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_serving.guard import BrowserGuard
    from agl_serving.launcher import PythonServerLauncher, PythonServerLauncherArgs
    from agl_serving.serving import SocketServer, probe_health, run_in_new_loop
    from agl_serving.signals import freeze_memory, stop_signal
    from agl_serving.sockets import (
        bind_socket,
        is_loopback,
        is_wildcard,
        outbound_address,
        url_host,
    )
    from agl_serving.tokens import (
        ATTEMPT_TOKEN_SECONDS,
        MIN_SECRET_LENGTH,
        SCOPES,
        Identity,
        Scope,
        TokenVerifier,
        is_token,
        mint_token,
    )

__all__ = [
    "ATTEMPT_TOKEN_SECONDS",
    "MIN_SECRET_LENGTH",
    "SCOPES",
    "BrowserGuard",
    "Identity",
    "PythonServerLauncher",
    "PythonServerLauncherArgs",
    "Scope",
    "SocketServer",
    "TokenVerifier",
    "bind_socket",
    "freeze_memory",
    "is_loopback",
    "is_token",
    "is_wildcard",
    "mint_token",
    "outbound_address",
    "probe_health",
    "run_in_new_loop",
    "stop_signal",
    "url_host",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ATTEMPT_TOKEN_SECONDS": "agl_serving.tokens",
        "BrowserGuard": "agl_serving.guard",
        "Identity": "agl_serving.tokens",
        "MIN_SECRET_LENGTH": "agl_serving.tokens",
        "PythonServerLauncher": "agl_serving.launcher",
        "PythonServerLauncherArgs": "agl_serving.launcher",
        "SCOPES": "agl_serving.tokens",
        "Scope": "agl_serving.tokens",
        "SocketServer": "agl_serving.serving",
        "TokenVerifier": "agl_serving.tokens",
        "bind_socket": "agl_serving.sockets",
        "freeze_memory": "agl_serving.signals",
        "is_loopback": "agl_serving.sockets",
        "is_token": "agl_serving.tokens",
        "is_wildcard": "agl_serving.sockets",
        "mint_token": "agl_serving.tokens",
        "outbound_address": "agl_serving.sockets",
        "probe_health": "agl_serving.serving",
        "run_in_new_loop": "agl_serving.serving",
        "stop_signal": "agl_serving.signals",
        "url_host": "agl_serving.sockets",
    },
)
