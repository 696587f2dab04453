"""Health, statistics, events and waiting."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from fastapi import Request, Response
from pydantic_core import to_json

from agl_core.store import LightningStore, StoreEvent
from agl_core.types import Rollout
from agl_serving import HTTPError, Receive, Send, Stream, send_stream, while_connected
from agl_store_http.server.api.common import ReaderCall, WriterCall, list_json, model_json
from agl_store_http.server.bodies.schemas import (
    Health,
    RenewedToken,
    Statistics,
    StoreTime,
    WaitRequest,
)
from agl_store_http.server.dependencies import json_body
from agl_store_http.server.doors.routing import answers, new_router
from agl_store_http.server.replies.reply import Reply

__all__ = ["router"]

router = new_router("meta")

_KEEP_ALIVE_SECONDS: Final = 15.0
"""Shorter than the 30 to 60 s after which proxies close a silent connection."""


@router.get(
    "/health",
    summary="Whether the server and its database answer; with `live=true`, the server alone",
    **answers(200, Health),
)
async def health(request: Request, live: bool = False) -> Reply:
    problem = None if live else await request.app.state.store_app.database.problem()
    if problem is not None:
        return Reply(to_json({"status": "unavailable", "detail": problem}), 503)
    return Reply(b'{"status":"ok"}')


@router.get("/statistics", summary="Counts of what is stored", **answers(200, Statistics))
async def statistics(call: ReaderCall) -> Reply:
    return Reply(to_json(await call.store.statistics()))


@router.get("/time", summary="The store's clock", **answers(200, StoreTime))
async def now(call: ReaderCall) -> Reply:
    return Reply(to_json({"now": await call.store.now()}))


@router.post(
    "/waits/rollouts",
    summary="Wait until all of these rollouts are finished, or until the timeout",
    **answers(200, list[Rollout]),
)
async def wait_for_rollouts(
    call: ReaderCall, body: Annotated[WaitRequest, json_body(WaitRequest)]
) -> Reply:
    store = call.store
    if body.timeout is not None and body.timeout <= 0:
        return Reply(
            await list_json(await store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=0))
        )
    finished, _ = await while_connected(
        store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=body.timeout),
        call.receive,
        call.app.stopping,
    )
    if finished is None:  # the server stops: the reply is what is finished by now
        finished = await store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=0)
    return Reply(await list_json(finished))


@router.post(
    "/token",
    summary="Renew the caller's token, of scope runner or algorithm",
    **answers(200, RenewedToken),
)
async def renew_token(call: WriterCall) -> Reply:
    tokens = call.app.tokens
    renewed = None if tokens is None else tokens.renew(call.identity)
    token, seconds = renewed or (None, None)
    return Reply(to_json({"token": token, "seconds": seconds}))


# -- events ----------------------------------------------------------------------------------------


class EventStream(Response):
    """Server-sent events until the client leaves, its token expires or the server stops."""

    media_type = "text/event-stream"

    def __init__(
        self, store: LightningStore, stopping: asyncio.Future[None], expires: float | None
    ) -> None:
        super().__init__()
        self._store = store
        self._stopping = stopping
        self._expires = expires

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))
        stream = Stream(_event_stream(self._store, self._expires), headers, endless=True)
        await send_stream(stream, send, receive, self._stopping)


@router.get(
    "/events",
    summary="Changes of rollouts, attempts, workers and resources as they happen "
    "(server-sent events)",
    response_class=EventStream,
    **answers(200, StoreEvent),
)
async def events(call: ReaderCall) -> Response:
    if not call.store.capabilities.get("events"):
        raise HTTPError(501, "the store behind this server tells no events")
    return EventStream(call.store, call.app.stopping, call.identity.expires)


async def _event_stream(
    store: LightningStore, expires: float | None
) -> AsyncGenerator[bytes, None]:
    """Yield events as text (WHATWG HTML, section 9.2), and a comment after a silence.

    Ends when the client's token expires, in epoch seconds; None: never.
    """
    iterator = store.events()
    pending: asyncio.Future[StoreEvent] = asyncio.ensure_future(anext(iterator))
    try:
        await asyncio.sleep(0)  # the iteration has begun: nothing from here on is missed
        yield b": listening\n\n"
        while (left := math.inf if expires is None else expires - time.time()) > 0:
            await asyncio.wait({pending}, timeout=min(left, _KEEP_ALIVE_SECONDS))
            if not pending.done():
                yield b": still here\n\n"
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            except NotImplementedError:
                return  # a client of an older server; its capabilities now say so
            pending = asyncio.ensure_future(anext(iterator))
            yield b"id: %d\nevent: %b\ndata: %b\n\n" % (
                event.event_id,
                event.kind.encode(),
                model_json(event),
            )
    finally:
        pending.cancel()
        await asyncio.wait({pending})
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()
