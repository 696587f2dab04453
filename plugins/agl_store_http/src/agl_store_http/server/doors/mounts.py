"""Apps of plugins on the store server: a dashboard, a metrics page."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound

from agl_core.errors import PluginBrokenError, PluginError
from agl_core.plugins import AppSpec, get_registry
from agl_core.store import LightningStore
from agl_serving import HTTPError, Message, Receive, Scope, Send
from agl_store_http.server.doors.routing import QUOTED_PATH
from agl_store_http.server.replies.failures import failure

if TYPE_CHECKING:
    from agl_store_http.server.app import StoreApp

__all__ = ["Mounts", "installed_apps", "refuse_websocket"]

logger = logging.getLogger(__name__)

_SCOPES: Final[dict[str, frozenset[Scope] | None]] = {
    "public": None,
    "read": frozenset({"read", "algorithm"}),
    "admin": frozenset(),
}


class Mounts(BaseRoute):
    """The last route of the server: hands a request to the mounted app that its path belongs to.

    Starlette's ``Mount`` is not enough: an app here also answers at its prefix without the trailing
    slash, an app on ``/`` must not hide unknown paths of the API, and each app has a token scope.
    A browser at the bare address is sent to the first app that needs no token: people type the
    address of a server, not the path of its page.

    Args:
        specs: What to mount; the longest prefix wins.
        store: Handed to each app's factory.
        server: Checks the tokens.

    Raises:
        PluginBrokenError: An app cannot be made.
    """

    def __init__(self, specs: Iterable[AppSpec], store: LightningStore, server: StoreApp) -> None:
        made = [(spec.path.rstrip("/"), spec, _make(spec, store)) for spec in specs]
        self._mounts = sorted(made, key=lambda mount: len(mount[0]), reverse=True)
        self._server = server
        public = [prefix for prefix, spec, _ in made if spec.scope == "public"]
        self._front = public[0].lstrip("/") if public and public[0] else None

    def matches(self, scope: Message) -> tuple[Match, Message]:
        if scope["type"] == "websocket":
            return Match.FULL, {}
        if scope["type"] != "http":
            return Match.NONE, {}
        found = self._find(scope) is not None or self._is_at_the_front(scope)
        return (Match.FULL if found else Match.NONE), {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)

    def _find(self, scope: Message) -> tuple[AppSpec, Any, str] | None:
        path: str = scope.get(QUOTED_PATH, scope["path"])
        for prefix, spec, app in self._mounts:
            if prefix == "":
                reads = scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD")
                return (spec, app, prefix) if reads and not path.startswith("/v1/") else None
            if path == prefix or path.startswith(prefix + "/"):
                return spec, app, prefix
        return None

    def _is_at_the_front(self, scope: Message) -> bool:
        path: str = scope.get(QUOTED_PATH, scope["path"])
        return self._front is not None and path == "/" and _wants_page(scope)

    async def handle(self, scope: Message, receive: Receive, send: Send) -> None:
        found = self._find(scope)
        try:
            if found is None:
                if self._front is not None and self._is_at_the_front(scope):
                    await _redirect(self._front, scope, receive, send)
                    return
                raise HTTPError(404, "Not Found")
            spec, app, prefix = found
            self._server.identify(_SCOPES[spec.scope], dict(scope["headers"]))
            path: str = scope.get(QUOTED_PATH, scope["path"])
            root: str = scope.get("root_path", "") + prefix
            if path == prefix:
                if _wants_page(scope):
                    # The browser resolves relative links below the slash.
                    await _redirect(prefix.rpartition("/")[2], scope, receive, send)
                    return
                path = prefix + "/"
            await app({**scope, "path": path, "root_path": root}, receive, send)
        except Exception as error:
            if scope["type"] == "http":
                await failure(error, scope["method"], scope["path"])(scope, receive, send)
            elif isinstance(error, HTTPError):
                await refuse_websocket(error, receive, send)
            else:
                raise


def installed_apps() -> tuple[AppSpec, ...]:
    """Return the apps of the installed plugins; one that does not load is left out with a warning.

    The store is what was asked for; an app beside it was not.
    """
    registry = get_registry()
    specs: list[AppSpec] = []
    for record in registry.usable("app"):
        try:
            spec = registry.load(record)
        except PluginError as error:
            logger.warning("%s is left out: %s", record.key, error)
            continue
        assert isinstance(spec, AppSpec)
        specs.append(spec)
    return tuple(specs)


def _wants_page(scope: Message) -> bool:
    reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    return reads and b"text/html" in dict(scope["headers"]).get(b"accept", b"")


async def _redirect(folder: str, scope: Message, receive: Receive, send: Send) -> None:
    """Send a browser to a folder, by a reference that is relative to the path of the request.

    It also holds behind a reverse proxy with a prefix of its own.
    """
    query: bytes = scope.get("query_string", b"")
    target = folder + "/" + (f"?{query.decode('latin-1')}" if query else "")
    await Response(status_code=307, headers={"location": target})(scope, receive, send)


async def refuse_websocket(error: HTTPError, receive: Receive, send: Send) -> None:
    """Close a websocket before it is open: code 1008, policy violation (RFC 6455, 7.4.1)."""
    logger.debug("websocket refused: %s", error)
    await receive()
    await send({"type": "websocket.close", "code": 1008})


def _make(spec: AppSpec, store: LightningStore) -> Any:
    module, _, name = spec.factory.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(store)
    except Exception as error:
        raise PluginBrokenError(f"app {spec.name!r} ({spec.factory}) failed: {error}") from error
