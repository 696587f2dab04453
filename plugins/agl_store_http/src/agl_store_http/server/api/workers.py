"""Workers: runners as the store sees them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from agl_core.errors import InvalidArgumentError
from agl_core.types import Worker
from agl_store_http.releasing import release_worker
from agl_store_http.server.api.common import (
    ReaderCall,
    RunnerCall,
    WorkReaderCall,
    WriterCall,
    model_json,
    optional_json,
    page_arguments,
)
from agl_store_http.server.bodies.schemas import (
    WorkerPage,
    WorkerQuery,
    WorkerRelease,
    WorkerUpdate,
)
from agl_store_http.server.dependencies import Call, json_body
from agl_store_http.server.doors.routing import answers, new_router
from agl_store_http.server.replies.pages import Listing, page_reply, read_already
from agl_store_http.server.replies.reply import Reply

__all__ = ["router"]

router = new_router("workers")


async def _page(call: Call, query: WorkerQuery) -> Response:
    found = await call.store.query_workers(**page_arguments(query))
    listing = Listing(read_already(found), model_json)
    return await page_reply(call, listing, query.limit, query.offset)


@router.get("/workers", summary="List workers", **answers(200, WorkerPage))
async def query(call: ReaderCall, query: Annotated[WorkerQuery, Query()]) -> Response:
    return await _page(call, query)


@router.post(
    "/workers/search", summary="List workers (filters in the body)", **answers(200, WorkerPage)
)
async def search(
    call: ReaderCall, body: Annotated[WorkerQuery, json_body(WorkerQuery)]
) -> Response:
    return await _page(call, body)


@router.get(
    "/workers/{worker_id}",
    summary="One worker; null if there is none",
    **answers(200, Worker | None),
)
async def get(worker_id: str, call: WorkReaderCall) -> Reply:
    return Reply(optional_json(await call.store.get_worker_by_id(worker_id)))


@router.post(
    "/workers/{worker_id}",
    summary="Record a heartbeat, creating the worker if need be",
    **answers(200, Worker),
)
async def update(
    worker_id: str,
    call: RunnerCall,
    body: Annotated[WorkerUpdate, json_body(WorkerUpdate, optional=True)],
) -> Reply:
    changes: Any = body
    if changes.get("heartbeat_stats", ...) is None:
        raise InvalidArgumentError("heartbeat_stats must be an object; leave it out to keep it")
    return Reply(model_json(await call.store.update_worker(worker_id, **changes)))


@router.post(
    "/workers/{worker_id}/release",
    summary="Fail the open attempts of a worker that is gone",
    **answers(200, None),
)
async def release(
    worker_id: str, call: WriterCall, body: Annotated[WorkerRelease, json_body(WorkerRelease)]
) -> Reply:
    await release_worker(call.store, worker_id, body.reason)
    return Reply(b"null")
