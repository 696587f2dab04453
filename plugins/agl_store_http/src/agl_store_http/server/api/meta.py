"""Health, statistics, events and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from pydantic_core import to_json

from agl_core.store.base import LightningStore
from agl_core.store.values import StoreEvent
from agl_core.types import Rollout
from agl_serving.messages import HTTPError, Response, Stream, while_connected
from agl_store_http.server.api.common import PREFIX, READERS, list_json, model_json
from agl_store_http.server.endpoints import Endpoint, Request
from agl_store_http.server.schemas import Health, Statistics, WaitRequest

__all__ = ["ENDPOINTS"]

_KEEP_ALIVE_SECONDS: Final = 15.0


async def health(_: Request) -> bytes:
    return b'{"status":"ok"}'


async def statistics(request: Request) -> bytes:
    return to_json(await request.app.store.statistics())


async def wait_for_rollouts(request: Request) -> bytes | Response:
    body: WaitRequest = request.body
    store = request.app.store
    if body.timeout is not None and body.timeout <= 0:
        return list_json(await store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=0))
    finished, _ = await while_connected(
        store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=body.timeout),
        request.receive,
        request.app.stopping,
    )
    if finished is None:  # the server stops: say what there is
        finished = await store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=0)
    return list_json(finished)


async def events(request: Request) -> Stream:
    store = request.app.store
    if not store.capabilities.get("events"):
        raise HTTPError(501, "the store behind this server tells no events")
    return Stream(
        _event_stream(store),
        ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")),
    )


async def _event_stream(store: LightningStore) -> AsyncGenerator[bytes, None]:
    """Server-sent events (WHATWG HTML, section 9.2), with a comment now and then in silence."""
    iterator = store.events()
    pending: asyncio.Future[StoreEvent] = asyncio.ensure_future(anext(iterator))
    try:
        await asyncio.sleep(0)  # the iteration has begun: nothing from here on is missed
        yield b": listening\n\n"
        while True:
            await asyncio.wait({pending}, timeout=_KEEP_ALIVE_SECONDS)
            if not pending.done():
                yield b": still here\n\n"
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
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


ENDPOINTS: Final = (
    Endpoint("GET", f"{PREFIX}/health", health, "Whether the server answers", None, reply=Health),
    Endpoint(
        "GET",
        f"{PREFIX}/statistics",
        statistics,
        "Counts of what is stored",
        READERS,
        reply=Statistics,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/events",
        events,
        "Changes of rollouts, attempts, workers and resources as they happen (server-sent events)",
        READERS,
        reply=StoreEvent,
        produces="text/event-stream",
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/waits/rollouts",
        wait_for_rollouts,
        "Wait until all of these rollouts are finished, or until the timeout",
        READERS,
        body=WaitRequest,
        reply=list[Rollout],
    ),
)
