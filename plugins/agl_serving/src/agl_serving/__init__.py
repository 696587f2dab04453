"""Serve an ASGI app in the running event loop, in a thread, or in processes.

The store server and the LLM proxies are built on it, and share what every server needs: access
tokens, the guard against pages of foreign origins, sockets and stop signals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_serving.guard import BrowserGuard, accepted_hosts
    from agl_serving.http import (
        JSON,
        ClientGone,
        Headers,
        HTTPError,
        Message,
        Receive,
        Send,
        Stream,
        error_details,
        read_body,
        reject_non_finite,
        send_response,
        send_stream,
        while_connected,
    )
    from agl_serving.launcher import (
        LaunchMode,
        PythonServerLauncher,
        PythonServerLauncherArgs,
    )
    from agl_serving.options import listen_options, log_level_option, port_option
    from agl_serving.signals import freeze_memory, stop_signal
    from agl_serving.sockets import (
        LOOPBACK,
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
    from agl_serving.uvicorn_server import SocketServer, probe_health, run_in_new_loop

__all__ = [
    "ATTEMPT_TOKEN_SECONDS",
    "JSON",
    "LOOPBACK",
    "MIN_SECRET_LENGTH",
    "SCOPES",
    "BrowserGuard",
    "ClientGone",
    "HTTPError",
    "Headers",
    "Identity",
    "LaunchMode",
    "Message",
    "PythonServerLauncher",
    "PythonServerLauncherArgs",
    "Receive",
    "Scope",
    "Send",
    "SocketServer",
    "Stream",
    "TokenVerifier",
    "accepted_hosts",
    "bind_socket",
    "error_details",
    "freeze_memory",
    "is_loopback",
    "is_token",
    "is_wildcard",
    "listen_options",
    "log_level_option",
    "mint_token",
    "outbound_address",
    "port_option",
    "probe_health",
    "read_body",
    "reject_non_finite",
    "run_in_new_loop",
    "send_response",
    "send_stream",
    "stop_signal",
    "url_host",
    "while_connected",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ATTEMPT_TOKEN_SECONDS": "agl_serving.tokens",
        "BrowserGuard": "agl_serving.guard",
        "accepted_hosts": "agl_serving.guard",
        "ClientGone": "agl_serving.http",
        "HTTPError": "agl_serving.http",
        "Headers": "agl_serving.http",
        "Identity": "agl_serving.tokens",
        "JSON": "agl_serving.http",
        "LOOPBACK": "agl_serving.sockets",
        "LaunchMode": "agl_serving.launcher",
        "MIN_SECRET_LENGTH": "agl_serving.tokens",
        "Message": "agl_serving.http",
        "PythonServerLauncher": "agl_serving.launcher",
        "PythonServerLauncherArgs": "agl_serving.launcher",
        "Receive": "agl_serving.http",
        "SCOPES": "agl_serving.tokens",
        "Scope": "agl_serving.tokens",
        "Send": "agl_serving.http",
        "SocketServer": "agl_serving.uvicorn_server",
        "Stream": "agl_serving.http",
        "TokenVerifier": "agl_serving.tokens",
        "bind_socket": "agl_serving.sockets",
        "error_details": "agl_serving.http",
        "freeze_memory": "agl_serving.signals",
        "is_loopback": "agl_serving.sockets",
        "is_token": "agl_serving.tokens",
        "is_wildcard": "agl_serving.sockets",
        "listen_options": "agl_serving.options",
        "log_level_option": "agl_serving.options",
        "mint_token": "agl_serving.tokens",
        "outbound_address": "agl_serving.sockets",
        "port_option": "agl_serving.options",
        "probe_health": "agl_serving.uvicorn_server",
        "read_body": "agl_serving.http",
        "reject_non_finite": "agl_serving.http",
        "run_in_new_loop": "agl_serving.uvicorn_server",
        "send_response": "agl_serving.http",
        "send_stream": "agl_serving.http",
        "stop_signal": "agl_serving.signals",
        "url_host": "agl_serving.sockets",
        "while_connected": "agl_serving.http",
    },
)
