"""Requests and replies of the store API: paths, bodies, and records read from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

from pydantic import Field, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from agl_core.errors import InvalidArgumentError
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
    as_json_value,
)
from agl_store_kit import Query

__all__ = [
    "ATTEMPT",
    "ATTEMPTS",
    "CLAIMS",
    "MAX_BATCH",
    "MAX_CLAIMS",
    "NAMED_RESOURCES",
    "RESOURCES",
    "RESOURCES_PAGE",
    "ROLLOUT",
    "ROLLOUTS",
    "ROLLOUT_PAGE",
    "SPANS",
    "WORKER",
    "WORKERS",
    "encode_body",
    "path_of",
    "query_fields",
    "read_page",
    "rollout_fields",
]

T = TypeVar("T")

MAX_BATCH: Final = 5_000
"""Most rollouts, spans or sequence ids that a server takes in one request."""
MAX_CLAIMS: Final = 1_000
"""Most claims that a server gives in one reply."""

# An AttemptedRollout is a Rollout with one key more, so the first that fits is the right one.
AnyRollout = Annotated[AttemptedRollout | Rollout, Field(union_mode="left_to_right")]

ROLLOUT: Final[TypeAdapter[Rollout | AttemptedRollout | None]] = TypeAdapter(AnyRollout | None)
ATTEMPT: Final[TypeAdapter[Attempt | None]] = TypeAdapter(Attempt | None)
WORKER: Final[TypeAdapter[Worker | None]] = TypeAdapter(Worker | None)
RESOURCES: Final[TypeAdapter[ResourcesUpdate | None]] = TypeAdapter(ResourcesUpdate | None)
ROLLOUTS: Final = TypeAdapter(list[Rollout])
CLAIMS: Final = TypeAdapter(list[AttemptedRollout])
NAMED_RESOURCES: Final = TypeAdapter(NamedResources)
ROLLOUT_PAGE: Final = TypeAdapter(PaginatedResult[AnyRollout])
ATTEMPTS: Final = TypeAdapter(PaginatedResult[Attempt])
RESOURCES_PAGE: Final = TypeAdapter(PaginatedResult[ResourcesUpdate])
WORKERS: Final = TypeAdapter(PaginatedResult[Worker])
SPANS: Final = TypeAdapter(PaginatedResult[Span])


def path_of(*segments: str) -> str:
    """Return a path whose segments may hold anything, slashes included."""
    return "".join([f"/{quote(segment, safe='')}" for segment in segments])


def encode_body(fields: Mapping[str, Any]) -> bytes:
    """Return the JSON of a request's fields.

    Raises:
        InvalidArgumentError: A value has no JSON form.
    """
    try:
        return to_json(fields)
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"a value cannot be sent as JSON: {error}") from error


def rollout_fields(request: EnqueueRolloutRequest) -> Mapping[str, Any]:
    """Return the fields of a rollout to enqueue, its task and metadata as JSON values."""
    values = {name: as_json_value(getattr(request, name), name) for name in ("input", "metadata")}
    return {**request.__dict__, **values}


def query_fields(query: Query) -> Mapping[str, Any]:
    """Return a query's fields as the API takes them.

    The API has no empty page. For one, a page of one item is requested, and :func:`read_page` drops
    the item.
    """
    values = {field.name: getattr(query, field.name) for field in fields(query)}
    return {**values, "limit": query.limit or 1}


def read_page(
    page: TypeAdapter[PaginatedResult[T]], body: bytes, query: Query
) -> PaginatedResult[T]:
    """Return the page of a reply."""
    found = page.validate_json(body)
    return found.model_copy(update={"items": [], "limit": 0}) if query.limit == 0 else found
