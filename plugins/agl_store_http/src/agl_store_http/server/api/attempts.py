"""Attempts of a rollout."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from agl_core.types import Attempt, AttemptedRollout
from agl_store_http.server.api.common import (
    WorkReaderCall,
    WriterCall,
    attempted_json,
    model_json,
    optional_json,
    page_arguments,
)
from agl_store_http.server.bodies.schemas import (
    AttemptPage,
    AttemptQuery,
    AttemptUpdate,
    StartAttemptRequest,
)
from agl_store_http.server.dependencies import Call, json_body
from agl_store_http.server.doors.routing import PREFIX, answers, new_router
from agl_store_http.server.replies.pages import Listing, page_reply, read_already
from agl_store_http.server.replies.reply import Reply

__all__ = ["router"]

router = new_router("attempts", f"{PREFIX}/rollouts/{{rollout_id}}/attempts")


@router.post(
    "",
    summary="Start another attempt, whatever the rollout's status and limits",
    **answers(201, AttemptedRollout, keyed=True),
)
async def start(
    rollout_id: str,
    call: WriterCall,
    body: Annotated[StartAttemptRequest, json_body(StartAttemptRequest, optional=True)],
) -> Reply:
    async def work() -> bytes:
        started = await call.store.start_attempt(rollout_id, worker_id=body.worker_id)
        return attempted_json(call, (started,))[0]

    return await call.once(201, work)


async def _page(rollout_id: str, call: Call, query: AttemptQuery) -> Response:
    found = await call.store.query_attempts(rollout_id, **page_arguments(query))
    listing = Listing(read_already(found), model_json)
    return await page_reply(call, listing, query.limit, query.offset)


@router.get("", summary="List the attempts of a rollout", **answers(200, AttemptPage))
async def query(
    rollout_id: str, call: WorkReaderCall, query: Annotated[AttemptQuery, Query()]
) -> Response:
    return await _page(rollout_id, call, query)


@router.post(
    "/search",
    summary="List the attempts of a rollout (order and page in the body)",
    **answers(200, AttemptPage),
)
async def search(
    rollout_id: str, call: WorkReaderCall, body: Annotated[AttemptQuery, json_body(AttemptQuery)]
) -> Response:
    return await _page(rollout_id, call, body)


@router.get(
    "/latest",
    summary="The attempt with the highest sequence id; null if there is none",
    **answers(200, Attempt | None),
)
async def latest(rollout_id: str, call: WorkReaderCall) -> Reply:
    return Reply(optional_json(await call.store.get_latest_attempt(rollout_id)))


@router.post(
    "/{attempt_id}",
    summary="Overwrite the fields given; the attempt may be called `latest`",
    **answers(200, Attempt, keyed=True),
)
async def update(
    rollout_id: str,
    attempt_id: str,
    call: WriterCall,
    body: Annotated[AttemptUpdate, json_body(AttemptUpdate)],
) -> Reply:
    changes: Any = body  # the store refuses null where it is not allowed

    async def work() -> bytes:
        return model_json(await call.store.update_attempt(rollout_id, attempt_id, **changes))

    return await call.once(200, work)


@router.post(
    "/{attempt_id}/return",
    summary="Return a claim that reached no runner; no effect once the attempt has changed",
    **answers(200, None),
)
async def return_claim(rollout_id: str, attempt_id: str, call: WriterCall) -> Reply:
    await call.store.return_claim(rollout_id, attempt_id)
    return Reply(b"null")
