"""Spans that a working store fails for or refuses, beside spans that it takes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from agl_core.errors import NotFoundError, StoreUnavailableError
from agl_core.store import EncodedSpan
from agl_core.types import AttemptedRollout, Span
from agl_proxy_direct import spool as spool_module
from agl_proxy_direct.spool import Spool
from agl_scripted import ScriptedModels
from agl_serving import PythonServerLauncherArgs
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore

FIELDS: dict[str, Any] = {
    "trace_id": "1" * 32,
    "parent_id": None,
    "name": "call",
    "status": {"status_code": "OK", "description": None},
    "attributes": {},
    "events": [],
    "links": [],
    "start_time": 1.0,
    "end_time": 2.0,
    "context": None,
    "parent": None,
    "resource": {"attributes": {}, "schema_url": ""},
}


class PoisonedStore(InMemoryLightningStore):
    """Fails like a server with status 500 for spans of the rollouts in ``bad``."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[str] = set()
        self.bad_draws: set[str] = set()
        self.bad_spans: set[str] = set()
        self.down = False
        self.calls = 0

    def _check(self, bad: bool) -> None:
        self.calls += 1
        if bad or self.down:
            raise StoreUnavailableError("the store server failed with status 500")

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        self._check(any(s.rollout_id in self.bad or s.span_id in self.bad_spans for s in spans))
        return await super().add_encoded_spans(spans)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        self._check(any(rollout_id in self.bad_draws for rollout_id, _ in rollout_attempt_ids))
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)

    async def get_rollout_by_id(self, rollout_id: str) -> Any:
        self._check(False)
        return await super().get_rollout_by_id(rollout_id)


@pytest.fixture
def store() -> PoisonedStore:
    return PoisonedStore()


@pytest.fixture
async def spool(store: PoisonedStore) -> AsyncIterator[Spool]:
    spool = Spool(store, give_up=0.3)
    yield spool
    await spool.close(0.01)


def submit(spool: Spool, claim: AttemptedRollout, span_id: int = 1) -> Any:
    span = spool.reserve(claim.rollout_id, claim.attempt.attempt_id)
    span.submit({**FIELDS, "span_id": f"{span_id:016x}"})
    return span


async def test_spans_reach_a_store_in_this_process_as_objects(store: PoisonedStore, spool: Spool):
    context = {"trace_id": "1" * 32, "span_id": "2" * 16, "is_remote": True, "trace_state": {}}
    fields = {
        **FIELDS,
        "span_id": "3" * 16,
        "parent_id": "2" * 16,
        "status": {"status_code": "ERROR", "description": "no"},
        "attributes": {"text": "a", "ids": [1, 2], "logprobs": [-0.25, -1.5], "flag": True},
        "parent": context,
        "context": {**context, "span_id": "3" * 16, "is_remote": False, "trace_state": {"k": "v"}},
        "resource": {"attributes": {"service.name": "agl-proxy"}, "schema_url": "s"},
    }
    claim = await store.start_rollout(input=1)
    ids = {"rollout_id": claim.rollout_id, "attempt_id": claim.attempt.attempt_id}
    span = spool.reserve(**ids)
    span.submit(fields)
    assert await spool.wait_stored(span, 2)
    (held,) = (await store.query_encoded_spans(claim.rollout_id)).items
    assert held.parts is not None
    (read,) = await store.query_spans(claim.rollout_id)
    assert read == Span.model_validate({**fields, **ids, "sequence_id": 1})


async def count(store: PoisonedStore, claim: AttemptedRollout) -> int:
    return len(await store.query_spans(claim.rollout_id))


@pytest.mark.parametrize("step", ["bad", "bad_draws"])
async def test_a_rollout_that_the_store_fails_for_holds_up_no_other(
    store: PoisonedStore, spool: Spool, step: str, caplog: pytest.LogCaptureFixture
):
    good = [await store.start_rollout(input=n) for n in range(20)]
    bad = await store.start_rollout(input="bad")
    getattr(store, step).add(bad.rollout_id)
    spans = [submit(spool, bad, n) for n in range(5)] + [submit(spool, claim) for claim in good]
    for span in spans[5:]:
        assert await spool.wait_stored(span, 2)
    assert [await count(store, claim) for claim in good] == [1] * 20
    await asyncio.sleep(0.05)
    assert spool.failing_for(bad.rollout_id) > 0
    assert spool.failing_for(good[0].rollout_id) == 0
    for n in range(20):  # the others' later spans do not share a batch with the bad ones
        span = submit(spool, good[0], 100 + n)
        assert await spool.wait_stored(span, 2)
        await asyncio.sleep(0.05)
    for span in spans[:5]:
        assert not await spool.wait_stored(span, 2)
    assert (spool.refused_spans, spool.waiting) == (5, 0)
    assert spool.failing_for(bad.rollout_id) == 0
    dropped = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert sum(int(text.split()[3]) for text in dropped) == 5
    assert "status 500" in dropped[0]
    assert len(caplog.records) < 10


async def test_a_rollout_whose_spans_were_dropped_stays_apart(store: PoisonedStore, spool: Spool):
    bad, good = [await store.start_rollout(input=n) for n in range(2)]
    store.bad.add(bad.rollout_id)
    lost = submit(spool, bad)
    while not lost.done.done():
        assert await spool.wait_stored(submit(spool, good, time.monotonic_ns()), 2)
        await asyncio.sleep(0.02)
    submit(spool, bad, 2)
    calls = store.calls
    assert await spool.wait_stored(submit(spool, good, 3), 2)
    # Draw and add of both rollouts, and the probe; one batch of both would be asked for again.
    assert store.calls - calls <= 5
    store.bad.clear()
    assert await spool.wait_stored(submit(spool, bad, 4), 2)
    assert await count(store, bad) == 2


async def test_one_bad_span_of_a_rollout_is_dropped_alone(store: PoisonedStore, spool: Spool):
    claim, other = [await store.start_rollout(input=n) for n in range(2)]
    store.bad_spans.add(f"{7:016x}")
    spans = [submit(spool, claim, n) for n in range(20)]
    for n, span in enumerate(spans):
        if n != 7:
            assert await spool.wait_stored(span, 2)
    while not spans[7].done.done():
        await spool.wait_stored(submit(spool, other, time.monotonic_ns()), 2)
        await asyncio.sleep(0.02)
    assert (await count(store, claim), spool.refused_spans) == (19, 1)


async def test_nothing_is_dropped_while_the_store_takes_nothing(store: PoisonedStore, spool: Spool):
    claims = [await store.start_rollout(input=n) for n in range(3)]
    store.bad |= {claim.rollout_id for claim in claims}  # e.g. a full disk: reads work
    spans = [submit(spool, claim) for claim in claims]
    await asyncio.sleep(0.8)  # longer than give_up
    assert (spool.refused_spans, spool.waiting) == (0, 3)
    other = await store.start_rollout(input="other")
    assert spool.failing_for(other.rollout_id) == 0
    store.bad.clear()
    for span in spans:
        assert await spool.wait_stored(span, 3)


async def test_a_store_that_is_down_fails_for_all_and_loses_nothing(
    store: PoisonedStore, spool: Spool, caplog: pytest.LogCaptureFixture
):
    claims = [await store.start_rollout(input=n) for n in range(3)]
    store.down = True
    spans = [submit(spool, claim) for claim in claims]
    await asyncio.sleep(0.5)
    assert spool.failing_for("any") > 0.3
    assert (spool.refused_spans, spool.waiting) == (0, 3)
    store.down = False
    for span in spans:
        assert await spool.wait_stored(span, 3)
    assert spool.failing_for("any") == 0
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


async def test_refused_spans_are_one_line_and_their_batch_is_stored(
    store: PoisonedStore, spool: Spool, caplog: pytest.LogCaptureFixture
):
    claim = await store.start_rollout(input=1)
    unknown = [spool.reserve("ro-no", "at-no") for _ in range(50)]
    for n, span in enumerate(unknown):
        span.submit({**FIELDS, "span_id": f"{1000 + n:016x}"})
    spans = [submit(spool, claim, n) for n in range(50)]
    for span in spans:
        assert await spool.wait_stored(span, 2)
    for span in unknown:
        assert not await spool.wait_stored(span, 2)
    assert spool.refused_spans == 50
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) <= 2 and "50 so far" in lines[-1]


async def test_a_call_gets_no_503_since_another_rollouts_spans_fail(
    store: PoisonedStore, serve: Any, backend: Any, models: ScriptedModels
):
    """Through a store server, whose replies have status 500 for the bad rollout."""
    good, bad = [await store.start_rollout(input=n) for n in range(2)]
    store.bad_draws.add(bad.rollout_id)
    server = LightningStoreServer(store, port=0, launcher_args=PythonServerLauncherArgs())
    await server.start()
    client = LightningStoreClient(server.endpoint, retry_delays=())
    proxy = await serve(backend(models), store=client, flush_timeout=0.3, stop_timeout=0.1)

    async def call(claim: AttemptedRollout) -> int:
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
        async with session.post(url + "/chat/completions", json={"messages": []}) as reply:
            return reply.status

    try:
        async with aiohttp.ClientSession() as session:
            assert await call(bad) == 200  # its span waits
            for _ in range(5):
                statuses = await asyncio.gather(*(call(good) for _ in range(5)), call(bad))
                assert statuses[:5] == [200] * 5
                await asyncio.sleep(0.1)
            assert statuses[5] == 503, "a call that cannot be recorded is refused"
        assert await count(store, good) == 25
    finally:
        await proxy.stop()
        await client.close()
        await server.stop()


class SplittingStore(PoisonedStore):
    """Refuses ids of an unknown rollout before all else, and takes spans when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.takes = asyncio.Event()

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        if any(rollout_id == "ro-no" for rollout_id, _ in rollout_attempt_ids):
            raise NotFoundError("no rollout ro-no")
        return await super().get_many_span_sequence_ids(rollout_attempt_ids)

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        self.sent += [span.span_id for span in spans]
        await self.takes.wait()
        return await super().add_encoded_spans(spans)


async def test_a_span_whose_id_was_drawn_before_its_batch_failed_is_stored_once():
    store = SplittingStore()
    spool = Spool(store, give_up=0.3)
    good, bad = [await store.start_rollout(input=name) for name in ("good", "bad")]
    store.bad_draws.add(bad.rollout_id)
    spans = [submit(spool, good, 1), spool.reserve("ro-no", "at-no"), submit(spool, bad, 2)]
    spans[1].submit({**FIELDS, "span_id": "3" * 16})
    for _ in range(50):  # turns of the loop: all that can be sent meanwhile is sent
        await asyncio.sleep(0)
    store.bad_draws.clear()
    store.takes.set()
    assert [await spool.wait_stored(span, 2) for span in spans] == [True, False, True]
    assert sorted(store.sent) == [f"{1:016x}", f"{2:016x}"]
    assert (spool.waiting, spool.stored_spans) == (0, 2)
    assert await spool.close(0.5) == 0


@pytest.mark.parametrize("turns", range(8))
async def test_a_span_that_comes_when_its_lane_ends_is_stored(
    store: PoisonedStore, turns: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spool_module, "_LANE_SECONDS", 0.0)
    spool = Spool(store, give_up=0.0)
    good, bad = [await store.start_rollout(input=n) for n in range(2)]
    store.bad.add(bad.rollout_id)
    dropped = submit(spool, bad)
    while not dropped.done.done():  # the store takes others, so it is dropped
        assert await spool.wait_stored(submit(spool, good, time.monotonic_ns()), 2)
    store.bad.clear()
    for _ in range(turns):
        await asyncio.sleep(0)
    assert await spool.wait_stored(submit(spool, bad, 2), 2)
    assert await spool.close(0.5) == 0
