"""The check of ``agl doctor`` for the port of the store server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from agl_core.doctor import Finding

__all__ = ["check_port"]


def check_port(port: int = 4747) -> Iterator[Finding]:
    """Yield whether a port, by default that of ``agl store``, is free."""
    with socket.socket() as probe:
        # Servers set this option too: connections of a stopped server in TIME_WAIT then do not
        # block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            yield Finding(
                "info",
                "port",
                f"port {port} is taken ({error.strerror}): a store server may be running there",
                f"agl doctor --store http://127.0.0.1:{port}, or agl store --port 0",
            )
        else:
            yield Finding("ok", "port", f"port {port} is free for a store server")
