"""An endpoint of the API, and finding the one that a request means.

The table of endpoints (:data:`agl_store_http.server.api.ENDPOINTS`) is the only place where a route
is written down: the dispatcher, the scopes and the OpenAPI document are all made from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pydantic import TypeAdapter

from agl_serving.messages import Headers, Receive, Response, Stream
from agl_serving.tokens import Identity, Scope

if TYPE_CHECKING:
    from agl_store_http.server.app import StoreApp

__all__ = ["Binding", "Endpoint", "Handler", "Request", "Router", "path_parameters"]


class Request:
    """What a handler gets.

    Attributes:
        app: The application; ``app.store`` is the store.
        params: Values of the path's parameters, in order.
        body: The parsed body or query; for an endpoint without a body type, its bytes.
        identity: Who calls.
        headers: Lower-case names; of repeated headers the last.
        receive: For noticing that the client went away.
        key: The client's idempotency key, if any.
    """

    __slots__ = ("app", "body", "headers", "identity", "key", "params", "receive")

    def __init__(
        self,
        app: StoreApp,
        params: tuple[str, ...],
        body: Any,
        identity: Identity,
        headers: Headers,
        receive: Receive,
        key: str | None,
    ) -> None:
        self.app = app
        self.params = params
        self.body = body
        self.identity = identity
        self.headers = headers
        self.receive = receive
        self.key = key


Handler = Callable[[Request], Awaitable[bytes | Response | Stream]]
Binding = Callable[[Request], Iterable[tuple[str | None, str | None]]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path.

    Attributes:
        method: HTTP method.
        path: Path with ``{parameters}``.
        handler: Returns the JSON of a reply with ``status``, or a whole response.
        summary: One line for the OpenAPI document.
        scopes: Token scopes that may call it besides ``admin``; None lets anyone in, token or not.
        reply: Type of the reply.
        status: Status of the reply.
        body: Type of the JSON body; None hands the raw bytes to the handler (or there are none).
        body_optional: Whether the body may be missing; it is an empty object then.
        query: Whether ``body`` comes in the query string.
        binding: For an endpoint open to ``attempt`` tokens: the (rollout, attempt) pairs that a
            request touches, all of which must be the token's own.
        creates: Whether the reply is remembered under the client's idempotency key.
        keeps_infinity: Whether the body's type can hold a number past the largest double.
        takes: For an endpoint that reads raw bytes: the media types, for the OpenAPI document.
        produces: Media type of the reply.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    scopes: frozenset[Scope] | None
    reply: Any = None
    status: int = 200
    body: Any = None
    body_optional: bool = False
    query: bool = False
    binding: Binding | None = None
    creates: bool = False
    keeps_infinity: bool = False
    takes: tuple[str, ...] = ()
    produces: str = "application/json"

    def parser(self) -> Callable[[bytes], Any] | None:
        """Return what turns body bytes into ``body``; None if the endpoint takes no JSON body."""
        if self.body is None or self.query:
            return None
        return TypeAdapter(self.body).validator.validate_json


def path_parameters(path: str) -> list[str]:
    """Return the names of a path's parameters."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


class _Node:
    __slots__ = ("literal", "methods", "parameter")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, Any] = {}


class Router:
    """Finds what a method and a path mean; a literal segment wins over a parameter."""

    def __init__(self) -> None:
        self._root = _Node()
        self._static: dict[tuple[str, str], Any] = {}

    def add(self, method: str, path: str, target: Any) -> None:
        node = self._root
        for part in path.split("/"):
            if part.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literal.setdefault(part, _Node())
        if method in node.methods:
            raise ValueError(f"two endpoints for {method} {path}")
        node.methods[method] = target
        if "{" not in path:
            self._static[method, path] = target

    def find(self, method: str, path: str, raw_path: bytes) -> tuple[Any, tuple[str, ...]] | None:
        """Return the target and the values of the path's parameters, or None.

        Args:
            method: HTTP method.
            path: The decoded path.
            raw_path: The path as it was sent: an encoded slash is part of a value there.
        """
        target = self._static.get((method, path))
        if target is not None:
            return target, ()
        for methods, params in self._matches(self._root, _segments(path, raw_path), 0, ()):
            if method in methods:
                return methods[method], params
        return None

    def methods(self, path: str, raw_path: bytes) -> set[str]:
        """Return the methods that the path has; none for an unknown path."""
        matches = self._matches(self._root, _segments(path, raw_path), 0, ())
        return {method for methods, _ in matches for method in methods}

    def _matches(
        self, node: _Node, parts: list[str], index: int, params: tuple[str, ...]
    ) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        # Down to the first parameter there is one way to go; a generator per segment would cost
        # more than the whole search.
        while index < len(parts):
            part = parts[index]
            index += 1
            literal = node.literal.get(part)
            parameter = node.parameter if part else None
            if literal is not None and parameter is not None:
                yield from self._matches(literal, parts, index, params)
                literal = None
            if literal is None:
                if parameter is None:
                    return
                params = (*params, part)
            node = literal or parameter  # pyright: ignore[reportAssignmentType]
        if node.methods:
            yield node.methods, params


def _segments(path: str, raw_path: bytes) -> list[str]:
    if b"%" not in raw_path:
        return path.split("/")
    return [unquote(part) for part in raw_path.decode("latin-1").split("/")]
