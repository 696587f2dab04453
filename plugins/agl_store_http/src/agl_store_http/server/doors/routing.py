"""FastAPI's router as the store server uses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match

from agl_serving import ClientGone, Message
from agl_store_http.server.bodies.schemas import Problem
from agl_store_http.server.replies.failures import failure
from agl_store_http.server.replies.reply import NoReply

__all__ = ["PREFIX", "QUOTED_PATH", "StoreRoute", "answers", "method_of", "new_router"]

PREFIX: Final = "/v1/agl"
QUOTED_PATH: Final = "agl.quoted_path"
"""Key of an ASGI scope whose path is still percent-encoded; its value is the decoded path."""


class StoreRoute(APIRoute):
    """A route whose errors are replies of this server, and whose ids may contain slashes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except ClientGone:
                return NoReply()
            except Exception as error:
                return failure(error, request.method, request.url.path)

        return answer

    def matches(self, scope: Message) -> tuple[Match, Message]:
        match, child = super().matches(scope)
        if match != Match.NONE and QUOTED_PATH in scope:
            values = child["path_params"]
            child["path_params"] = {name: unquote(value) for name, value in values.items()}
        return match, child


def new_router(tag: str, prefix: str = PREFIX) -> APIRouter:
    """Return a router for the endpoints of one module.

    Args:
        tag: Groups the endpoints in the OpenAPI document.
        prefix: Path that they have in common.
    """
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=StoreRoute,
        default_response_class=Response,
        generate_unique_id_function=_operation_id,
        responses={"default": {"model": Problem, "description": "The error"}},
    )


def answers(status: int, model: Any, *, keyed: bool = False) -> dict[str, Any]:
    """Return a route's arguments for its reply.

    Args:
        status: Status of the reply.
        model: Type of the reply, for the OpenAPI document. Endpoints return its JSON as bytes.
        keyed: Whether the reply is remembered under the client's idempotency key.
    """
    arguments: dict[str, Any] = {"status_code": status, "responses": {status: {"model": model}}}
    if keyed:
        arguments["openapi_extra"] = {"parameters": [_KEY_PARAMETER]}
    return arguments


_KEY_PARAMETER: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A retry with the same key gets the first call's reply.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}


def method_of(route: APIRoute) -> str:
    """Return a route's method; each of this server's has one."""
    return next(iter(route.methods or ()))


def _operation_id(route: APIRoute) -> str:
    words = re.findall(r"[a-z_]+", route.path_format.removeprefix("/v1/").removeprefix("agl/"))
    return "_".join([method_of(route).lower(), *words])
