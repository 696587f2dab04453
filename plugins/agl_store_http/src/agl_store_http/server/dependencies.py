"""FastAPI dependencies of the endpoints: who calls, and the body.

FastAPI resolves the dependencies of an endpoint in the order of its parameters. Every endpoint
names the caller first, so the token is checked before a byte of the body is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic import BaseModel, TypeAdapter
from pydantic_core import ValidationError

from agl_core.store import current_request_key
from agl_serving import (
    JSON,
    Headers,
    HTTPError,
    Identity,
    Message,
    Receive,
    Scope,
    error_details,
    read_body,
    reject_non_finite,
)
from agl_store_http.server.bodies.weighing import MAX_WEIGHT, check_weight, is_small
from agl_store_http.server.replies.reply import Reply
from agl_store_kit import Pauses

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_store_http.server.app import StoreApp

__all__ = [
    "Allow",
    "Call",
    "JsonBody",
    "RawBody",
    "allow",
    "current_call",
    "json_body",
    "parse_query",
    "raw_body",
]

_MAX_KEY_LENGTH: Final = 200
"""A UUID has 36 characters; keys are kept for minutes."""

current_call: ContextVar[Call] = ContextVar("current_call")
"""The request that this task serves."""
_body_digest: ContextVar[bytes] = ContextVar("body_digest", default=b"")
"""Digest of the current request's body, if the request has an idempotency key."""


class Call:
    """One authorised request.

    Attributes:
        app: The server's app.
        store: The store that it serves.
        identity: The caller.
        headers: Lower-case names; of repeated headers the last.
        receive: ASGI's; tells when the client leaves.
        key: The client's idempotency key, if any.
    """

    __slots__ = ("_method", "_path", "app", "headers", "identity", "key", "receive", "store")

    def __init__(
        self, app: StoreApp, identity: Identity, scope: Message, headers: Headers, receive: Receive
    ) -> None:
        self.app = app
        self.store: LightningStore = app.store
        self.identity = identity
        self.headers = headers
        self.receive = receive
        self._method: str = scope["method"]
        self._path: str = scope["path"]
        key = headers.get(b"idempotency-key")
        self.key = None if key is None else _checked_key(key)
        current_call.set(self)
        # The store may remember a call under its key in the transaction that does the work.
        current_request_key.set(None if key is None else self.store_key(self.reply_name()))

    def reply_name(self, *more: str | None) -> str:
        """Return the name that the reply to this call is remembered under.

        Callers of different rights never share a name, whatever keys they choose.
        """
        who = self.identity
        return repr(
            (who.scope, who.rollout_id, who.attempt_id, self._method, self._path, more, self.key)
        )

    def store_key(self, name: str) -> str:
        """Return the key that the store may remember the call of a reply name under."""
        return hashlib.sha256(name.encode()).hexdigest()[:40]

    async def once(self, status: int, work: Callable[[], Awaitable[bytes]]) -> Reply:
        """Do the work of a creating call, or return what an earlier try of it replied.

        Args:
            status: Status of the reply.
            work: Does the work and returns the reply's JSON.
        """
        if self.key is None:
            return Reply(await work(), status)

        async def run() -> Reply:
            return Reply(await work(), status)

        reply = await self.app.replies.once(self.reply_name(), run, _body_digest.get())
        assert reply is not None
        return reply


def _checked_key(key: bytes) -> str:
    if not 0 < len(key) <= _MAX_KEY_LENGTH:
        raise HTTPError(400, f"an Idempotency-Key has 1 to {_MAX_KEY_LENGTH} characters")
    return key.decode("latin-1")


def _app_of(request: Request) -> StoreApp:
    return request.app.state.store_app


class Allow(SecurityBase):
    """Lets tokens of some scopes in, and of scope ``admin`` always; yields the :class:`Call`.

    Args:
        scopes: The scopes. Without auth, everyone who reaches the server is let in.
    """

    def __init__(self, *scopes: Scope) -> None:
        self.scopes = frozenset(scopes)
        self.model = HTTPBearer()
        self.scheme_name = "token"

    async def __call__(self, request: Request) -> Call:
        headers: Headers = dict(request.scope["headers"])
        return self.open(_app_of(request), request.scope, headers, request.receive)

    def open(self, app: StoreApp, scope: Message, headers: Headers, receive: Receive) -> Call:
        """Return the call; HTTPError 401 or 403 if the token does not allow it."""
        return Call(app, app.identify(self.scopes, headers), scope, headers, receive)


class RawBody:
    """Reads a body as bytes, within the server's limit.

    Args:
        media_types: Media types of the body, for the OpenAPI document.
    """

    def __init__(self, *media_types: str) -> None:
        self.media_types = media_types

    async def __call__(self, request: Request) -> Any:
        return await self.read(_app_of(request), dict(request.scope["headers"]), request.receive)

    async def read(self, app: StoreApp, headers: Headers, receive: Receive) -> Any:
        """Return the body; HTTPError 413 if it is larger than the server takes."""
        return await read_body(receive, headers, app.options.max_body_bytes)


class JsonBody(RawBody):
    """Reads a JSON body and parses its bytes once, into the type that the endpoint takes.

    Args:
        kind: Type of the body.
        optional: Whether the body may be missing; it is an empty object then.
        keeps_infinity: Whether the type can hold a number past the largest double.
        max_weight: Most that the body may weigh, see :mod:`~agl_store_http.server.bodies.weighing`.
    """

    def __init__(
        self,
        kind: Any,
        *,
        optional: bool = False,
        keeps_infinity: bool = False,
        max_weight: int = MAX_WEIGHT,
    ) -> None:
        super().__init__("application/json")
        self.adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self.optional = optional
        self._parse = self.adapter.validator.validate_json
        self._overflow = not keeps_infinity
        self._max_weight = max_weight

    async def read(self, app: StoreApp, headers: Headers, receive: Receive) -> Any:
        """Return the parsed body.

        Raises:
            HTTPError: 413 if it is too large or holds too many values, 415 if it is not JSON by its
                media type, 422 if it is missing or holds a number that JSON cannot write.
            ValidationError: It does not parse.
        """
        body = await read_body(receive, headers, app.options.max_body_bytes)
        if b"idempotency-key" in headers:
            _body_digest.set(hashlib.sha256(body).digest())
        if not body:
            if self.optional:
                return self._parse(b"{}")
            raise HTTPError(422, [{"type": "missing", "loc": ["body"], "msg": "Field required"}])
        media_type = headers.get(b"content-type", JSON[1])
        if media_type != JSON[1] and not _is_json(media_type):
            raise HTTPError(415, "the body must be application/json")
        return await self.parse(body)

    async def parse(self, body: bytes) -> Any:
        """Return what a JSON document says; raises as :meth:`read` does."""
        if is_small(body, self._max_weight):
            parsed = self._parse(body)
            reject_non_finite(body, overflow=self._overflow)
            return parsed
        pauses = Pauses()
        await check_weight(body, self._max_weight)
        parsed = self._parse(body)
        await pauses.take()
        reject_non_finite(body, overflow=self._overflow)
        await pauses.take()
        return parsed


def _is_json(media_type: bytes) -> bool:
    plain = media_type.partition(b";")[0].strip().lower()
    return plain == JSON[1] or (plain.startswith(b"application/") and plain.endswith(b"+json"))


def parse_query(model: type[BaseModel], query_string: bytes) -> Any:
    """Parse a query string as FastAPI does for a parameter ``Annotated[model, Query()]``.

    Raises:
        HTTPError: 422, a value does not fit.
    """
    lists = _list_fields(model)
    values: dict[str, Any] = {}
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name in lists:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise HTTPError(422, error_details(error, "query")) from None


@cache
def _list_fields(model: type[BaseModel]) -> frozenset[str]:
    fields = model.model_fields.items()
    return frozenset(name for name, field in fields if "list[" in str(field.annotation))


def allow(*scopes: Scope) -> Any:
    """Return :class:`Allow` as a dependency."""
    return Depends(Allow(*scopes))


def json_body(kind: Any, **options: Any) -> Any:
    """Return :class:`JsonBody` as a dependency."""
    return Depends(JsonBody(kind, **options))


def raw_body(*media_types: str) -> Any:
    """Return :class:`RawBody` as a dependency."""
    return Depends(RawBody(*media_types))
