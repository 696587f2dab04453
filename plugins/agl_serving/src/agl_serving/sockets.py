"""Listening sockets and their addresses.

A server's socket is bound here before the server starts and then passed to it, so no other process
can take the announced port in between.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Final

from agl_core.errors import LaunchError
from agl_core.hosts import is_loopback

__all__ = ["LOOPBACK", "bind_socket", "is_loopback", "is_wildcard", "outbound_address", "url_host"]

LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 2048
"""As uvicorn has it; a thousand runners connect within one second."""


def bind_socket(host: str, port: int | None) -> socket.socket:
    """Return a socket that is bound and listens.

    Args:
        host: Address or name of the interface.
        port: Port, or None (or 0) for any free one.

    Raises:
        LaunchError: The host is unknown, or the port is out of range, taken or not permitted.
    """
    if not 0 <= (port or 0) <= 65535:
        raise LaunchError(f"cannot listen on port {port}: ports are 0 to 65535")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port or 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise LaunchError(f"cannot listen on {host!r}: {error.strerror}") from error
    listener = socket.socket(family, kind, proto)
    try:
        if os.name == "posix":
            # A restarted server must not wait for its predecessor's connections to time out. On
            # Windows the same option would let two servers share the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise LaunchError(
            f"cannot listen on {host}:{port}: {error.strerror}; "
            "choose another port, or stop the process that holds this one"
        ) from error
    listener.setblocking(False)
    return listener


def is_wildcard(host: str) -> bool:
    """Tell whether the host means every interface."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def outbound_address() -> str:
    """Return the IPv4 address of this machine's default route; loopback if there is none.

    No packet is sent: connecting a datagram socket only reads the routing table.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def url_host(host: str) -> str:
    """Return the host in URL notation: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
