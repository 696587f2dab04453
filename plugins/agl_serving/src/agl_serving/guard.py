"""Protects a server without tokens from requests of foreign web pages.

A server on loopback trusts all local clients, and every page that the user opens can send requests
to loopback. Two checks refuse such requests. The Host header must name this machine; otherwise a
page could point its own domain here (DNS rebinding) and read the replies. A request whose headers
name a page must come from a page of this server or of an allowed origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from agl_serving.http import HTTPError
from agl_serving.sockets import is_loopback

__all__ = ["BrowserGuard", "accepted_hosts"]

_LOCAL_NAMES = frozenset({b"localhost"})


def accepted_hosts(bound: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the Host header of a server may contain.

    Args:
        bound: Interface of the server. On a network that it trusts, a server has names that it does
            not know (``store`` in a compose file, a service of Kubernetes), so any is accepted.
        names: Names that the operator chose; they replace this default.
    """
    return tuple(names) or (() if is_loopback(bound) else ("*",))


class BrowserGuard:
    """Refuses requests that a foreign page could have made.

    Args:
        hosts: Names that the Host header may contain besides ``localhost`` and IP addresses (an
            address cannot be rebound); ``"*"`` allows all.
        origins: Origins whose pages may send requests; ``"*"`` allows all.
    """

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = _LOCAL_NAMES | {host.lower().encode() for host in hosts}
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)
        self._any_host = b"*" in self._hosts
        self._any_origin = b"*" in self._origins
        self._seen: set[bytes] = set()

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raise for a request that a foreign page may have sent.

        Raises:
            HTTPError: 421 for a foreign Host, 403 for a foreign page.
        """
        host = headers.get(b"host", b"")
        if host not in self._seen and not self._any_host:
            if not self._is_ours(host):
                raise HTTPError(
                    421,
                    "this server does not accept that Host header; name it with --allowed-host, "
                    "or protect the server with --auth-token",
                )
            if len(self._seen) < 64:
                self._seen.add(host)
        if self._any_origin:
            return
        origin = headers.get(b"origin")
        if origin is None:
            # A page's plain GET has no Origin header, but Sec-Fetch-Site classifies the page.
            if headers.get(b"sec-fetch-site", b"none") in (b"cross-site", b"same-site"):
                raise _foreign_page()
        elif origin not in self._origins and origin not in (b"http://" + host, b"https://" + host):
            raise _foreign_page()

    def _is_ours(self, host: bytes) -> bool:
        name = host.decode("latin-1").lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.partition(":")[0]
        if name.encode("latin-1") in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _foreign_page() -> HTTPError:
    return HTTPError(
        403, "pages of another origin may not call this server; allow one with --cors-origin"
    )
