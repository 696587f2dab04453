"""Serves the built page: one HTML file for every view, and its assets."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Final

from agl_core.store import LightningStore
from agl_serving import Message, Receive, Send

__all__ = ["CONTENT_SECURITY_POLICY", "DashboardApp", "make_app"]

STATIC: Final = Path(__file__).with_name("static")

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Spans hold text of models and tools, so no script but the page's own may ever run
(https://www.w3.org/TR/CSP3/)."""

_SECURITY: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_TYPES: Final = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
"""Media types that a machine's own table may lack or have wrong."""
_NOT_BUILT: Final = """<!doctype html><html lang="en"><title>agl dashboard</title>
<h1>The dashboard is not built</h1>
<p>This installation lacks the page, which every clone and every wheel of agl-dashboard holds.
Install it again, or build the page in the clone:</p>
<pre>python3 dev.py dashboard</pre></html>
"""


class DashboardApp:
    """ASGI app of the page. Answers GET and HEAD; each path without a file is a view of the page.

    Args:
        static: Folder of the built page.
    """

    def __init__(self, static: Path = STATIC) -> None:
        self._files = {
            path.relative_to(static).as_posix(): path.read_bytes()
            for path in static.rglob("*")
            if path.is_file()
        }
        self._page = self._files.pop("index.html", b"").decode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        del receive
        if scope["method"] not in ("GET", "HEAD"):
            await _reply(scope, send, 405, b"Method Not Allowed", "text/plain")
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        file = self._files.get(path)
        if file is not None:
            lasting = path.startswith("assets/")  # their names hold a hash of their content
            cache = b"public, max-age=31536000, immutable" if lasting else b"no-cache"
            await _reply(scope, send, 200, file, _media_type(path), cache)
        elif path.startswith("assets/"):
            await _reply(scope, send, 404, b"Not Found", "text/plain")
        elif not self._page:
            await _reply(scope, send, 503, _NOT_BUILT.encode(), "text/html; charset=utf-8")
        else:
            # A relative base also works behind a reverse proxy that adds a prefix. The raw path
            # counts, because an encoded slash in an id is not a level.
            depth = scope["raw_path"].count(b"/") - scope.get("root_path", "").count("/") - 1
            base = "../" * depth or "./"
            page = self._page.replace("<head>", f'<head><base href="{base}">', 1)
            await _reply(scope, send, 200, page.encode(), "text/html; charset=utf-8")


def make_app(store: LightningStore) -> DashboardApp:
    """Return the app; the page reads the store over the REST API."""
    del store
    return DashboardApp()


def _media_type(path: str) -> str:
    return _TYPES.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "text/plain"


async def _reply(
    scope: Message, send: Send, status: int, body: bytes, kind: str, cache: bytes = b"no-cache"
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", cache),
        *_SECURITY,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    content = b"" if scope["method"] == "HEAD" else body
    await send({"type": "http.response.body", "body": content})
