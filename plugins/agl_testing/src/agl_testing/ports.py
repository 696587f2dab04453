"""Ports for tests: of a server that starts later, and of one that is gone."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["free_port", "held_port"]

_FIXED_PORTS: Final = range(20_000, 32_768)
"""Ports that Linux gives to no connection of itself (``net.ipv4.ip_local_port_range``). Another
connection may have taken any other one before the server starts."""
_LOOPBACK: Final = "127.0.0.1"


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens until the caller does.

    Raises:
        OSError: The system has no room for another socket.
    """
    while True:
        # Not from `random`: processes that have the same seed would draw the same ports.
        port = secrets.choice(_FIXED_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


@contextmanager
def held_port(port: int = 0) -> Generator[int]:
    """Keep a port that refuses connections, in a ``with`` block. Yields the port.

    No server can get it meanwhile.

    Args:
        port: A port of the loopback interface, as of a server that has stopped; 0 takes a free one.
    """
    with socket.socket() as holder:
        reuse = socket.SOL_SOCKET, socket.SO_REUSEADDR
        holder.setsockopt(*reuse, 1)  # connections of the server before linger
        holder.bind((_LOOPBACK, port))
        holder.setsockopt(*reuse, 0)  # or a server with that option could share the port
        yield holder.getsockname()[1]
