"""Resources: what an algorithm tunes and agents receive."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Response
from pydantic_core import to_json

from agl_core.errors import PermissionDeniedError
from agl_core.types import NamedResources, ResourcesUpdate
from agl_serving import HTTPError
from agl_store_http.secrets import masked
from agl_store_http.server.api.common import (
    AlgorithmCall,
    AnyCall,
    WorkReaderCall,
    model_json,
    page_arguments,
)
from agl_store_http.server.bodies.schemas import ResourcesPage, ResourcesQuery
from agl_store_http.server.dependencies import Call, json_body
from agl_store_http.server.doors.routing import answers, new_router
from agl_store_http.server.replies.pages import Listing, page_reply, read_already
from agl_store_http.server.replies.reply import Reply

__all__ = ["router"]

router = new_router("resources")

_SEE_KEYS: Final = frozenset({"admin", "algorithm", "runner"})
"""Scopes that get the API keys in resources."""

NamedResourcesBody = Annotated[NamedResources, json_body(NamedResources)]


@router.get("/resources", summary="List resources snapshots", **answers(200, ResourcesPage))
async def query(call: WorkReaderCall, query: Annotated[ResourcesQuery, Query()]) -> Response:
    found = await call.store.query_resources(**page_arguments(query))
    listing = Listing(read_already(found), lambda update: _json(call, update))
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


# Every agent needs resources, so any token reads the latest ones. Those of others are none of an
# attempt's business: they may be checkpoints of runs.


@router.get(
    "/resources/latest",
    summary="The snapshot most recently added or updated; null if there is none",
    **answers(200, ResourcesUpdate | None),
)
async def latest(call: AnyCall) -> Reply:
    own = await _own(call)
    found = await call.store.get_latest_resources()
    return Reply(_json(call, found, shows_keys=found is not None and found.resources_id == own))


@router.get(
    "/resources/{resources_id}",
    summary="One snapshot; null if there is none",
    **answers(200, ResourcesUpdate | None),
)
async def get(resources_id: str, call: AnyCall) -> Reply:
    is_own = resources_id == await _own(call)
    if call.identity.scope == "attempt" and not is_own:
        raise PermissionDeniedError("this token reads no snapshot but that of its rollout")
    found = await call.store.get_resources_by_id(resources_id)
    return Reply(_json(call, found, shows_keys=is_own))


async def _own(call: Call) -> str | None:
    """Return the id of the snapshot that the caller's attempt runs with; None for other callers."""
    rollout_id = call.identity.rollout_id
    if rollout_id is None:
        return None
    rollout = await call.store.get_rollout_by_id(rollout_id)
    if rollout is None or rollout.resources_id is not None:
        return None if rollout is None else rollout.resources_id
    snapshot = await call.store.get_latest_resources()
    return None if snapshot is None else snapshot.resources_id


def _json(call: Call, snapshot: ResourcesUpdate | None, *, shows_keys: bool = False) -> bytes:
    if snapshot is None:
        return b"null"
    if shows_keys or call.identity.scope in _SEE_KEYS:
        return model_json(snapshot)
    return to_json(masked(snapshot.model_dump(mode="json")))


@router.post(
    "/resources/{resources_id}/swap",
    summary="Replace a snapshot if its version is still the given one; null if it is not",
    **answers(200, ResourcesUpdate | None, keyed=True),
)
async def swap(
    resources_id: str,
    call: AlgorithmCall,
    body: NamedResourcesBody,
    version: Annotated[int, Query(ge=0, description="The version that was read; 0 for none.")],
) -> Reply:
    if not call.store.capabilities.get("compare_and_set"):
        raise HTTPError(501, "the store behind this server cannot compare and set")

    async def work() -> bytes:
        swapped = await call.store.swap_resources(resources_id, body, version=version)
        return _json(call, swapped)

    return await call.once(200, work)


@router.post(
    "/resources/{resources_id}",
    summary="Replace a snapshot, or create it; it becomes the latest",
    **answers(200, ResourcesUpdate, keyed=True),
)
async def update(resources_id: str, call: AlgorithmCall, body: NamedResourcesBody) -> Reply:
    async def work() -> bytes:
        return model_json(await call.store.update_resources(resources_id, body))

    return await call.once(200, work)
