"""``cs``: the algorithm and the runners in separate processes, around a store server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_exec_cs.client_server import ClientServerExecutionStrategy
    from agl_exec_cs.config import ClientServerConfig

__all__ = [
    "ClientServerConfig",
    "ClientServerExecutionStrategy",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ClientServerConfig": "agl_exec_cs.config",
        "ClientServerExecutionStrategy": "agl_exec_cs.client_server",
    },
)
