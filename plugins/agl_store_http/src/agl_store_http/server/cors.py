"""Cross-origin resource sharing (Fetch standard, "CORS protocol"), off unless origins are named."""

from __future__ import annotations

from collections.abc import Iterable

from agl_serving.messages import Headers, Response

__all__ = ["CrossOrigin"]

_METHODS = b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_PREFLIGHT_SECONDS = b"600"


class CrossOrigin:
    """Says to browsers which pages may read answers; credentials and all headers are allowed.

    Args:
        origins: Origins, e.g. ``https://dash.example``; ``"*"`` is all, none turns it off.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins if origin)
        self._any = b"*" in self._origins

    def __bool__(self) -> bool:
        return bool(self._origins)

    def headers(self, request: Headers) -> list[tuple[bytes, bytes]]:
        """Return what to add to the answer; nothing for an origin that is not allowed."""
        origin = request.get(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            return []
        # The origin is echoed even for "*": browsers refuse the star together with credentials.
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"Origin"),
        ]

    def preflight(self, method: str, request: Headers) -> Response | None:
        """Return the answer to a preflight request, or None if this is none."""
        if method != "OPTIONS" or b"access-control-request-method" not in request:
            return None
        allowed = self.headers(request)
        if not allowed:
            return Response(400, b"this origin is not allowed", ((b"content-type", b"text/plain"),))
        wanted = request.get(b"access-control-request-headers", b"")
        return Response(
            200,
            b"",
            (
                *allowed,
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-allow-headers", wanted),
                (b"access-control-max-age", _PREFLIGHT_SECONDS),
            ),
        )
