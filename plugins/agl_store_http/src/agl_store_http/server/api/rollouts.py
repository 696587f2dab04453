"""Rollouts."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any

from fastapi import Query, Response

from agl_core.errors import PermissionDeniedError
from agl_core.types import AttemptedRollout, PaginatedResult, Rollout
from agl_store_http.server.api.common import (
    AlgorithmCall,
    AnyCall,
    ReaderCall,
    WorkReaderCall,
    WriterCall,
    attempted_json,
    model_json,
    optional_json,
    page_arguments,
)
from agl_store_http.server.bodies.schemas import (
    RolloutPage,
    RolloutQuery,
    RolloutUpdate,
    StartRolloutRequest,
)
from agl_store_http.server.dependencies import Call, json_body
from agl_store_http.server.doors.routing import answers, new_router
from agl_store_http.server.replies.pages import Listing, is_long, page_reply, read_already
from agl_store_http.server.replies.reply import Reply

__all__ = ["router"]

router = new_router("rollouts")


@router.post(
    "/rollouts",
    summary="Start a rollout at once, bypassing the queue",
    **answers(201, AttemptedRollout, keyed=True),
)
async def start(
    call: WriterCall, body: Annotated[StartRolloutRequest, json_body(StartRolloutRequest)]
) -> Reply:
    async def work() -> bytes:
        started = await call.store.start_rollout(**body.__dict__)
        return attempted_json(call, (started,))[0]

    return await call.once(201, work)


async def _page(call: Call, query: RolloutQuery) -> Response:
    arguments = page_arguments(query)
    if query.mode_in is None:
        del arguments["mode_in"]  # a store of version 0.3 has no such filter
    keep: Callable[[Rollout], bool] | None = None
    kept: int | None = None
    if is_long(query.limit):
        if query.sort_by is not None or query.filter_logic == "or":
            found = await call.store.query_rollouts(**arguments)
            listing = Listing(read_already(found), model_json)
            return await page_reply(call, listing, query.limit, query.offset)
        if query.status_in is not None:
            # A rollout that changes its status would move those behind it.
            statuses = frozenset(query.status_in)
            if call.identity.scope == "read":  # its lists have a limit
                one: dict[str, Any] = {**arguments, "limit": 1, "offset": 0}
                kept = (await call.store.query_rollouts(**one)).total
            arguments["status_in"] = None
            keep = lambda rollout: rollout.status in statuses  # noqa: E731

    async def read(limit: int, offset: int) -> PaginatedResult[Any]:
        page: dict[str, Any] = {**arguments, "limit": limit, "offset": offset}
        return await call.store.query_rollouts(**page)

    listing = Listing(read, model_json, keep, kept, attrgetter("rollout_id"))
    return await page_reply(call, listing, query.limit, query.offset)


@router.get(
    "/rollouts",
    summary="List rollouts, each with its latest attempt",
    **answers(200, RolloutPage),
)
async def query(call: ReaderCall, query: Annotated[RolloutQuery, Query()]) -> Response:
    return await _page(call, query)


@router.post(
    "/rollouts/search",
    summary="List rollouts, each with its latest attempt (filters in the body)",
    **answers(200, RolloutPage),
)
async def search(
    call: WorkReaderCall, body: Annotated[RolloutQuery, json_body(RolloutQuery)]
) -> Response:
    by_ids = body.rollout_id_in is not None and body.filter_logic == "and"
    if call.identity.scope == "runner" and not by_ids:
        # It asks whether the rollouts that it runs continue; it may read those one by one, too.
        raise PermissionDeniedError("a token of scope runner may list rollouts by their ids only")
    return await _page(call, body)


@router.get(
    "/rollouts/{rollout_id}",
    summary="One rollout with its latest attempt; null if there is none",
    **answers(200, AttemptedRollout | Rollout | None),
)
async def get(rollout_id: str, call: AnyCall) -> Reply:
    bound = call.identity.attempt_id
    call.identity.require_attempt(rollout_id, bound)
    rollout = await call.store.get_rollout_by_id(rollout_id)
    if (
        bound is not None
        and isinstance(rollout, AttemptedRollout)
        and rollout.attempt.attempt_id != bound
    ):
        # The caller's attempt was retried, and its token does not show the newer attempt.
        return Reply(Rollout.__pydantic_serializer__.to_json(rollout))
    return Reply(optional_json(rollout))


@router.post(
    "/rollouts/{rollout_id}",
    summary="Overwrite the fields given",
    **answers(200, Rollout, keyed=True),
)
async def update(
    rollout_id: str, call: AlgorithmCall, body: Annotated[RolloutUpdate, json_body(RolloutUpdate)]
) -> Reply:
    changes: Any = body  # the store refuses null where it is not allowed

    async def work() -> bytes:
        return model_json(await call.store.update_rollout(rollout_id, **changes))

    return await call.once(200, work)
