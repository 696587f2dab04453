"""Workers: runners as the store sees them."""

from __future__ import annotations

from typing import Final

from agl_core.errors import InvalidArgumentError
from agl_core.types import Worker
from agl_store_http.server.api.common import (
    PREFIX,
    READERS,
    RUNNER,
    model_json,
    optional_json,
    page_arguments,
    page_json,
)
from agl_store_http.server.endpoints import Endpoint, Request
from agl_store_http.server.schemas import WorkerPage, WorkerQuery, WorkerUpdate

__all__ = ["ENDPOINTS"]


async def query(request: Request) -> bytes:
    return page_json(await request.app.store.query_workers(**page_arguments(request.body)))


async def get(request: Request) -> bytes:
    return optional_json(await request.app.store.get_worker_by_id(request.params[0]))


async def update(request: Request) -> bytes:
    if request.body.get("heartbeat_stats", ...) is None:
        raise InvalidArgumentError("heartbeat_stats must be an object; leave it out to keep it")
    return model_json(await request.app.store.update_worker(request.params[0], **request.body))


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        f"{PREFIX}/workers",
        query,
        "List workers",
        READERS,
        body=WorkerQuery,
        query=True,
        reply=WorkerPage,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/workers/search",
        query,
        "List workers (filters in the body)",
        READERS,
        body=WorkerQuery,
        reply=WorkerPage,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/workers/{{worker_id}}",
        get,
        "One worker; null if there is none",
        READERS | RUNNER,
        reply=Worker | None,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/workers/{{worker_id}}",
        update,
        "Record a heartbeat, creating the worker if need be",
        RUNNER,
        body=WorkerUpdate,
        body_optional=True,
        reply=Worker,
    ),
)
