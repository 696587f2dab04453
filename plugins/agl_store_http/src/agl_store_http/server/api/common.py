"""Shared by the endpoints: scopes of callers, and records as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from agl_core.errors import InvalidArgumentError
from agl_core.types import AttemptedRollout
from agl_store_http.server.dependencies import Call, allow
from agl_store_kit import in_slices

__all__ = [
    "AlgorithmCall",
    "AnyCall",
    "ReaderCall",
    "RunnerCall",
    "SpanCall",
    "WorkReaderCall",
    "WriterCall",
    "attempted_json",
    "list_json",
    "model_json",
    "optional_json",
    "page_arguments",
]

# Callers by what they may do; the admin may do everything.
ReaderCall = Annotated[Call, allow("read", "algorithm")]
"""Reads anything."""
AlgorithmCall = Annotated[Call, allow("algorithm")]
"""Makes work and resources."""
RunnerCall = Annotated[Call, allow("runner")]
"""Does work."""
WriterCall = Annotated[Call, allow("algorithm", "runner")]
"""Is either side of the loop."""
WorkReaderCall = Annotated[Call, allow("read", "algorithm", "runner")]
"""Reads what runners also read."""
SpanCall = Annotated[Call, allow("algorithm", "runner", "attempt")]
"""Writes spans. An ``attempt`` token only its own: the endpoint checks that."""
AnyCall = Annotated[Call, allow("read", "algorithm", "runner", "attempt")]
"""Has any token. With an ``attempt`` token it sees only its own: the endpoint checks that."""


def model_json(model: BaseModel) -> bytes:
    serializer = type(model).__pydantic_serializer__
    try:
        return serializer.to_json(model)
    except PydanticSerializationError:
        # A task that was enqueued in this process may hold half of a surrogate pair. It must not
        # make the list that it is in unreadable.
        text = json.dumps(serializer.to_python(model, mode="json"), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def optional_json(model: BaseModel | None) -> bytes:
    return b"null" if model is None else model_json(model)


async def list_json(models: Sequence[BaseModel]) -> bytes:
    """Return the JSON of a list, made in slices: it may be long."""
    return b"[" + b",".join(await in_slices(lambda part: map(model_json, part), models)) + b"]"


def page_arguments(query: BaseModel) -> dict[str, Any]:
    """Return a query's fields as arguments of the store's query method."""
    arguments = dict(query.__dict__)
    limit = arguments["limit"]
    if limit == 0 or limit < -1:
        raise InvalidArgumentError(f"limit must be -1 (unlimited) or at least 1, not {limit}")
    return arguments


def attempted_json(call: Call, claims: Iterable[AttemptedRollout]) -> list[bytes]:
    """Return the JSON of claims, each with the token of its attempt if the server has auth.

    The token is added to the rollout's fields as ``attempt_token``: a header could not hold
    those of a large batch.
    """
    tokens = call.app.tokens
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
