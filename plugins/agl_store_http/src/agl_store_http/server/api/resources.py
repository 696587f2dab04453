"""Resources: what an algorithm tunes and agents receive."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from agl_core.types import NamedResources, ResourcesUpdate
from agl_store_http.server.api.common import (
    AlgorithmCall,
    AnyCall,
    WorkReaderCall,
    model_json,
    optional_json,
    page_arguments,
)
from agl_store_http.server.dependencies import json_body
from agl_store_http.server.pages import Listing, page_reply, read_already
from agl_store_http.server.replies import Reply
from agl_store_http.server.routing import answers, new_router
from agl_store_http.server.schemas import ResourcesPage, ResourcesQuery

__all__ = ["router"]

router = new_router("resources")

NamedResourcesBody = Annotated[NamedResources, json_body(NamedResources)]


@router.get("/resources", summary="List resources snapshots", **answers(200, ResourcesPage))
async def query(call: WorkReaderCall, query: Annotated[ResourcesQuery, Query()]) -> Response:
    found = await call.store.query_resources(**page_arguments(query))
    listing = Listing(read_already(found), model_json)
    return await page_reply(call, listing, query.limit, query.offset)


@router.post(
    "/resources",
    summary="Store a new snapshot; it becomes the latest",
    **answers(201, ResourcesUpdate, keyed=True),
)
async def add(call: AlgorithmCall, body: NamedResourcesBody) -> Reply:
    async def work() -> bytes:
        return model_json(await call.store.add_resources(body))

    return await call.once(201, work)


# Resources belong to no attempt, and every agent needs them: any token reads them.


@router.get(
    "/resources/latest",
    summary="The snapshot most recently added or updated; null if there is none",
    **answers(200, ResourcesUpdate | None),
)
async def latest(call: AnyCall) -> Reply:
    return Reply(optional_json(await call.store.get_latest_resources()))


@router.get(
    "/resources/{resources_id}",
    summary="One snapshot; null if there is none",
    **answers(200, ResourcesUpdate | None),
)
async def get(resources_id: str, call: AnyCall) -> Reply:
    return Reply(optional_json(await call.store.get_resources_by_id(resources_id)))


@router.post(
    "/resources/{resources_id}",
    summary="Replace a snapshot, or create it; it becomes the latest",
    **answers(200, ResourcesUpdate, keyed=True),
)
async def update(resources_id: str, call: AlgorithmCall, body: NamedResourcesBody) -> Reply:
    async def work() -> bytes:
        return model_json(await call.store.update_resources(resources_id, body))

    return await call.once(200, work)
