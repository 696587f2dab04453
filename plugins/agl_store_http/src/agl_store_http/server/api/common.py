"""What the handlers share: who may call, and how records become JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from agl_core.errors import InvalidArgumentError
from agl_core.types import AttemptedRollout, PaginatedResult
from agl_serving.tokens import Scope
from agl_store_http.server.endpoints import Request

__all__ = [
    "ALGORITHM",
    "ANYONE",
    "PREFIX",
    "READERS",
    "RUNNER",
    "WRITERS",
    "attempted_json",
    "list_json",
    "model_json",
    "optional_json",
    "page_arguments",
    "page_json",
    "path_attempt",
]

PREFIX: Final = "/v1/agl"

# Who may call, besides the admin.
READERS: Final[frozenset[Scope]] = frozenset({"read", "algorithm"})
"""Looks at anything."""
ALGORITHM: Final[frozenset[Scope]] = frozenset({"algorithm"})
"""Makes work and resources."""
RUNNER: Final[frozenset[Scope]] = frozenset({"runner"})
"""Does work."""
WRITERS: Final[frozenset[Scope]] = frozenset({"algorithm", "runner"})
"""Either side of the loop."""
ANYONE: Final[frozenset[Scope]] = frozenset({"algorithm", "runner", "attempt", "read"})


def model_json(model: BaseModel) -> bytes:
    return type(model).__pydantic_serializer__.to_json(model)


def optional_json(model: BaseModel | None) -> bytes:
    return b"null" if model is None else type(model).__pydantic_serializer__.to_json(model)


def list_json(models: Iterable[BaseModel]) -> bytes:
    return b"[" + b",".join([model_json(model) for model in models]) + b"]"


def page_json(page: PaginatedResult[Any], items: Sequence[bytes] | None = None) -> bytes:
    """Return the JSON of a page.

    Args:
        page: The page.
        items: Its items' JSON, if they have it already.
    """
    if items is None:
        items = [model_json(item) for item in page.items]
    return b'{"items":[%b],"limit":%d,"offset":%d,"total":%d}' % (
        b",".join(items),
        page.limit,
        page.offset,
        page.total,
    )


def page_arguments(query: BaseModel) -> Mapping[str, Any]:
    """Return a query's fields as arguments of the store's query method."""
    arguments = query.__dict__
    limit = arguments["limit"]
    if limit == 0:
        raise InvalidArgumentError("limit must be -1 (unlimited) or at least 1, not 0")
    return arguments


def attempted_json(request: Request, claims: Iterable[AttemptedRollout]) -> list[bytes]:
    """Return the JSON of claims, each with the token of its attempt if the server has auth.

    The token stands beside the rollout's fields under ``attempt_token``: a header could not hold
    those of a large batch.
    """
    tokens = request.app.tokens
    if tokens is None:
        return [model_json(claim) for claim in claims]
    return [
        b'%b,"attempt_token":"%b"}'
        % (
            model_json(claim)[:-1],
            tokens.attempt_token(claim.rollout_id, claim.attempt.attempt_id).encode(),
        )
        for claim in claims
    ]


def path_attempt(request: Request) -> Iterable[tuple[str | None, str | None]]:
    """Binding of paths that name a rollout and an attempt."""
    return ((request.params[0], request.params[1]),)
