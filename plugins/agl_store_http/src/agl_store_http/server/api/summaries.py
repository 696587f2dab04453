"""Endpoints for pages that show many rollouts: counts, rewards, tokens, model calls, training."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Response

from agl_core.types import PaginatedResult
from agl_store_http.server.api.common import ReaderCall, list_json, model_json
from agl_store_http.server.bodies.schemas import (
    BatchQuery,
    GainQuery,
    ModelCallPage,
    ModelCallQuery,
    RolloutCounts,
    RolloutSummariesRequest,
    RunQuery,
    TextQuery,
)
from agl_store_http.server.dependencies import json_body
from agl_store_http.server.doors.routing import answers, new_router
from agl_store_http.server.replies.pages import Listing, page_reply, read_already
from agl_store_http.server.replies.reply import Reply
from agl_store_http.server.views.costs import RunCost, add_up
from agl_store_http.server.views.summaries import RolloutSummary, model_calls
from agl_store_http.server.views.text_search import TextMatches, search_text
from agl_store_http.server.views.training_schemas import BatchGroups, PairedGain, TrainingSummary

__all__ = ["router"]

router = new_router("summaries")

_PATIENCE_SECONDS: Final = 1.0
"""A page shows what is known after this time, and asks again for the rest."""


@router.get(
    "/rollouts/counts", summary="Number of rollouts by status", **answers(200, RolloutCounts)
)
async def counts(call: ReaderCall) -> Reply:
    numbers: dict[str, int] = {}
    for status in RolloutCounts.model_fields:
        page = await call.store.query_rollouts(status_in=[status], limit=0)  # pyright: ignore[reportArgumentType]
        numbers[status] = page.total
    return Reply(model_json(RolloutCounts(**numbers)))


@router.get(
    "/rollouts/containing",
    summary="Rollouts whose task, messages or errors have a text; searches for about a second",
    **answers(200, TextMatches),
)
async def containing(call: ReaderCall, query: Annotated[TextQuery, Query()]) -> Reply:
    found = await search_text(call.store, query.text, query.offset, _PATIENCE_SECONDS)
    return Reply(model_json(found))


@router.post(
    "/rollouts/summaries",
    summary="Reward, tokens and span count of the latest attempt of rollouts",
    **answers(200, list[RolloutSummary]),
)
async def summaries(
    call: ReaderCall, body: Annotated[RolloutSummariesRequest, json_body(RolloutSummariesRequest)]
) -> Reply:
    return Reply(await list_json(await call.app.summaries.of(body.rollout_ids)))


@router.get(
    "/rollouts/{rollout_id}/calls",
    summary="Model calls of a rollout: messages, tools, tokens; in one form for all vocabularies",
    **answers(200, ModelCallPage),
)
async def calls(
    rollout_id: str, call: ReaderCall, query: Annotated[ModelCallQuery, Query()]
) -> Response:
    found = await model_calls(call.store, rollout_id, query.attempt_id)
    end = None if query.limit < 0 else query.offset + query.limit
    page = PaginatedResult(
        items=found[query.offset : end],
        limit=query.limit,
        offset=query.offset,
        total=len(found),
    )
    return await page_reply(
        call, Listing(read_already(page), model_json), query.limit, query.offset
    )


@router.get(
    "/training",
    summary="Rewards of every batch of every run; reads what is new since the last call",
    **answers(200, TrainingSummary),
)
async def training(call: ReaderCall) -> Reply:
    return Reply(model_json(await call.app.training.summary(_PATIENCE_SECONDS)))


@router.get(
    "/training/groups",
    summary="Rollouts of one batch of a run by task, with the spread of their rewards",
    **answers(200, BatchGroups),
)
async def groups(call: ReaderCall, query: Annotated[BatchQuery, Query()]) -> Reply:
    found = await call.app.training.groups(query.run, query.batch, _PATIENCE_SECONDS)
    return Reply(model_json(found))


@router.get(
    "/training/gain",
    summary="Gain of one snapshot over another on the tasks that both have, with its interval",
    **answers(200, PairedGain),
)
async def gain(call: ReaderCall, query: Annotated[GainQuery, Query()]) -> Reply:
    found = await call.app.training.gain(query.before, query.after, query.mode, _PATIENCE_SECONDS)
    return Reply(model_json(found))


@router.get(
    "/training/costs",
    summary="Model calls and tokens of each batch of a run, of up to 1,000 of its rollouts",
    **answers(200, RunCost),
)
async def costs(call: ReaderCall, query: Annotated[RunQuery, Query()]) -> Reply:
    await call.app.training.summary(_PATIENCE_SECONDS)
    found = await add_up(call.app.summaries, call.app.training.members(query.run))
    return Reply(model_json(found))
