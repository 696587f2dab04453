"""Resources: what an algorithm tunes and agents receive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agl_core.types import NamedResources, ResourcesUpdate
from agl_store_http.server.api.common import (
    ALGORITHM,
    ANYONE,
    PREFIX,
    READERS,
    RUNNER,
    model_json,
    optional_json,
    page_arguments,
    page_json,
)
from agl_store_http.server.endpoints import Endpoint, Request
from agl_store_http.server.schemas import ResourcesPage, ResourcesQuery

__all__ = ["ENDPOINTS"]


async def query(request: Request) -> bytes:
    return page_json(await request.app.store.query_resources(**page_arguments(request.body)))


async def add(request: Request) -> bytes:
    return model_json(await request.app.store.add_resources(request.body))


async def latest(request: Request) -> bytes:
    return optional_json(await request.app.store.get_latest_resources())


async def get(request: Request) -> bytes:
    return optional_json(await request.app.store.get_resources_by_id(request.params[0]))


async def update(request: Request) -> bytes:
    return model_json(await request.app.store.update_resources(request.params[0], request.body))


def _any_attempt(_: Request) -> Iterable[tuple[str | None, str | None]]:
    return ()  # resources belong to no attempt, and every agent needs them


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        f"{PREFIX}/resources",
        query,
        "List resources snapshots",
        READERS | RUNNER,
        body=ResourcesQuery,
        query=True,
        reply=ResourcesPage,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/resources",
        add,
        "Store a new snapshot; it becomes the latest",
        ALGORITHM,
        body=NamedResources,
        reply=ResourcesUpdate,
        status=201,
        creates=True,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/resources/latest",
        latest,
        "The snapshot most recently added or updated; null if there is none",
        ANYONE,
        reply=ResourcesUpdate | None,
        binding=_any_attempt,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/resources/{{resources_id}}",
        get,
        "One snapshot; null if there is none",
        ANYONE,
        reply=ResourcesUpdate | None,
        binding=_any_attempt,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/resources/{{resources_id}}",
        update,
        "Replace a snapshot, or create it; it becomes the latest",
        ALGORITHM,
        body=NamedResources,
        reply=ResourcesUpdate,
        creates=True,
    ),
)
