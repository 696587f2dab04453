"""A guard against network traffic, for tests of libraries that send telemetry."""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

__all__ = ["agl_loopback_only", "loopback_only"]

_LOCAL_NAMES = frozenset({"", "localhost", "localhost.localdomain", socket.gethostname()})
# https://docs.python.org/3/library/audit_events.html
_PLACES: Final = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
    "socket.getnameinfo": 0,
}
"""Place of the host or the address among the arguments of an audit event."""


class _Guard:
    """Lets the sockets of this process reach only loopback addresses, while it is on.

    An audit hook sees every connection that Python makes in this process. It cannot be removed, so
    there is one per process, which is switched on and off.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._installed = False
        self.attempts: list[str] | None = None

    def watch(self, attempts: list[str] | None) -> None:
        with self._lock:
            if not self._installed:
                sys.addaudithook(self._audit)
                self._installed = True
            self.attempts = attempts

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        attempts = self.attempts
        if attempts is None or not event.startswith("socket."):
            return
        place = _PLACES.get(event)
        host: Any = None if place is None else args[place]
        if isinstance(host, tuple):  # an address: host, port and more
            host = host[0] if host else None
        if isinstance(host, bytes):
            host = host.decode()
        if isinstance(host, str) and not _is_local(host):
            attempts.append(f"{event} {host}")
            raise PermissionError(f"tests stay on this machine: {event} {host}")


def _is_local(host: str) -> bool:
    if host in _LOCAL_NAMES:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:127.0.0.1
    return address.is_loopback or address.is_unspecified


_guard = _Guard()


@contextmanager
def loopback_only() -> Generator[list[str]]:
    """Allow this process only loopback connections in a ``with`` block; refuse name lookups too.

    For programs that tests start; their child processes are not covered. Do not nest it. Yields
    the list of attempts, which a test that expects attempts may clear.

    Raises:
        AssertionError: At the end, if there were attempts, because libraries may swallow the error.
    """
    attempts: list[str] = []
    _guard.watch(attempts)
    try:
        yield attempts
    finally:
        _guard.watch(None)
    assert not attempts, f"the test tried to reach the network: {attempts}"


@pytest.fixture
def agl_loopback_only() -> Iterator[list[str]]:
    """Fail the test if this process connects to, or looks up, any host but loopback.

    The attempt itself fails too; see :func:`loopback_only`.
    """
    with loopback_only() as attempts:
        yield attempts
