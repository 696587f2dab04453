"""How often a client asks, of a server that misbehaves to order."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import pickle
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from agl_core.errors import (
    AglError,
    InvalidArgumentError,
    RolloutNotFoundError,
    StoreDataError,
    StoreFullError,
    StoreUnavailableError,
)
from agl_core.store import current_request_key
from agl_core.types import EnqueueRolloutRequest, RolloutConfig, Span
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import LightningStoreClient, StoreApp
from agl_store_memory import InMemoryLightningStore
from agl_testing.ports import held_port

FAST: dict[str, Any] = {"retry_delays": (0.01, 0.01, 0.01), "health_retry_delays": (0.01, 0.01)}


class Moody:
    """A real store server behind a gate: each planned failure is used once, before the store."""

    def __init__(self) -> None:
        self.store = InMemoryLightningStore()
        self.app = StoreApp(self.store)
        self.plan: list[Any] = []
        self.after: list[bool] = []
        """For each coming request: do the work, then lose the reply."""
        self.healthy = True
        self.without: tuple[str, ...] = ()
        self.ignore_wait = False
        self.requests: Counter[str] = Counter()
        self.keys: list[str | None] = []
        self.more_headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix("/v1/agl")
        self.requests[path] += 1
        if path == "/health":
            await self.reply(send, 200 if self.healthy else 503, {"status": "?"})
            return
        headers = dict(scope["headers"])
        self.keys.append(headers.get(b"idempotency-key", b"").decode() or None)
        if path in self.without:
            await self.reply(send, 404, {"detail": "Not Found"})
            return
        if self.plan:
            status, body = self.plan.pop(0)
            await self.reply(send, status, body)
            return
        if self.ignore_wait:
            receive = self.impatient(receive)
        if self.after and self.after.pop(0):
            await self.app(scope, receive, self.nowhere)
            raise ConnectionResetError("the reply is lost")  # uvicorn closes the connection
        await self.app(scope, receive, send)

    async def nowhere(self, message: Any) -> None:
        """A connection that is gone."""

    def impatient(self, receive: Any) -> Any:
        async def changed() -> Any:
            message = await receive()
            if message.get("body"):
                body = json.loads(message["body"])
                body.pop("wait", None)
                message = {**message, "body": json.dumps(body).encode()}
            return message

        return changed

    async def reply(self, send: Any, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        headers = [(b"content-length", b"%d" % len(data)), *self.more_headers]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


@pytest_asyncio.fixture
async def moody() -> AsyncIterator[Any]:
    app: Any = Moody()
    launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
    await launcher.start()
    app.url = launcher.endpoint
    yield app
    await launcher.stop()


@pytest_asyncio.fixture
async def connect(moody) -> AsyncIterator[Any]:
    clients: list[LightningStoreClient] = []

    def make(**options: Any) -> LightningStoreClient:
        clients.append(LightningStoreClient(moody.url + "/", **{**FAST, **options}))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


FAILURE = (500, {"detail": "Internal server error", "error_type": "OSError", "error_id": "abc"})


async def test_a_failing_server_is_asked_four_times(moody, connect):
    moody.plan = [FAILURE] * 9
    with pytest.raises(StoreUnavailableError, match=r"status 500.*abc"):
        await connect().statistics()
    assert moody.requests["/statistics"] == 4
    assert moody.requests["/health"] == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_a_refusal_is_final(moody, connect, status):
    moody.plan = [(status, {"detail": "no"})] * 9
    with pytest.raises(AglError, match="no"):
        await connect().statistics()
    assert moody.requests == {"/statistics": 1}


async def test_a_gateway_says_how_long_it_wants_to_be_left_alone(moody, connect):
    moody.plan = [(429, {"detail": "slow down"})]
    moody.more_headers = [(b"retry-after", b"1")]
    began = time.monotonic()
    await connect().statistics()
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
async def test_one_failure_is_overcome(moody, connect, status):
    moody.plan = [(status, {"detail": "later"})]
    assert (await connect().statistics())["total_rollouts"] == 0
    assert moody.requests["/statistics"] == 2


async def test_an_unhealthy_server_is_not_asked_again(moody, connect):
    moody.plan, moody.healthy = [FAILURE] * 9, False
    with pytest.raises(StoreUnavailableError):
        await connect().statistics()
    assert moody.requests == {"/statistics": 1, "/health": 3}


async def test_without_retries_health_is_still_probed(moody, connect):
    moody.plan = [FAILURE] * 9
    with pytest.raises(StoreUnavailableError):
        await connect(retry_delays=()).statistics()
    assert moody.requests == {"/statistics": 1, "/health": 1}


async def test_without_probes_retries_happen_unasked(moody, connect):
    moody.plan = [FAILURE] * 9
    with pytest.raises(StoreUnavailableError):
        await connect(health_retry_delays=()).statistics()
    assert moody.requests == {"/statistics": 4}


@pytest.mark.usefixtures("no_interceptors")
async def test_a_timeout_is_retried(moody, connect):
    release = asyncio.Event()
    calls = 0

    async def slow() -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            await release.wait()
        return {"name": "slow"}

    moody.store.statistics = slow
    assert await connect(request_timeout=0.3).statistics() == {"name": "slow"}
    release.set()


async def test_errors_are_those_of_a_local_store(connect):
    client = connect()
    with pytest.raises(RolloutNotFoundError, match="ro-x"):
        await client.start_attempt("ro-x")
    with pytest.raises(InvalidArgumentError, match="sort by"):
        await client.query_workers(sort_by="nonsense")
    with pytest.raises(InvalidArgumentError, match="mode"):
        await client.enqueue_rollout(1, mode="sideways")
    with pytest.raises(InvalidArgumentError, match="status"):
        await client.update_rollout("ro-x", status=None)
    with pytest.raises(TypeError, match="heartbeat_stats"):
        await client.update_worker("w", None)


@pytest.mark.usefixtures("no_interceptors")
@pytest.mark.parametrize("kind", [StoreDataError, StoreFullError])
async def test_a_full_store_is_told_from_a_damaged_one(moody, connect, kind):
    async def refuse() -> Any:
        raise kind("no")

    moody.store.statistics = refuse
    with pytest.raises(StoreDataError, match="no") as raised:
        await connect().statistics()
    assert type(raised.value) is kind


async def test_no_server_at_all():
    with held_port() as port:
        client = LightningStoreClient(f"http://127.0.0.1:{port}", **FAST)
        with pytest.raises(StoreUnavailableError, match=f"{port} does not answer"):
            await client.dequeue_rollout("w")
        await client.close()


# -- replies that are lost -------------------------------------------------------------------------


async def test_lost_replies_repeat_nothing(moody, connect):
    client = connect()
    moody.after = [True, True, False]
    rollout = await client.enqueue_rollout("x")
    moody.after = [True, False]
    claim = await client.dequeue_rollout("w")
    assert claim is not None
    assert claim.rollout_id == rollout.rollout_id
    ids = (claim.rollout_id, claim.attempt.attempt_id)
    span = Span.from_attributes(attributes={"a": 1}, rollout_id=ids[0], attempt_id=ids[1])
    moody.after = [True, False]
    assert await client.add_span(span) == span
    assert await client.add_span(span) is None
    more = [
        Span.from_attributes(attributes={"n": n}, rollout_id=ids[0], attempt_id=ids[1])
        for n in range(3)
    ]
    moody.after = [True, False]
    assert await client.add_many_spans([*more, span]) == [*more, span]
    moody.after = [True, False]
    assert (await client.update_attempt(*ids, status="succeeded")).status == "succeeded"
    moody.after = [True, False]
    await client.add_resources({})
    counts = await client.statistics()
    assert [
        counts.get(f"total_{name}") for name in ("rollouts", "attempts", "spans", "resources")
    ] == [1, 1, 4, 1]


async def test_a_retried_update_does_not_undo_what_happened_meanwhile(moody, connect):
    client = connect()
    made = await client.start_rollout("x")
    moody.nowhere = claims_at_once(moody)
    moody.after = [True, False]
    await client.update_rollout(made.rollout_id, status="requeuing")
    assert await moody.store.dequeue_rollout("second") is None, "it was queued twice"
    moody.after = [True, False]
    await client.update_attempt(made.rollout_id, "latest", status="failed", metadata={"n": 1})
    attempts = await client.query_attempts(made.rollout_id)
    assert [attempt.status for attempt in attempts] == ["preparing", "failed"]


def claims_at_once(moody: Moody) -> Any:
    """Return a lost connection during whose loss a waiting runner claims."""

    async def nowhere(message: Any) -> None:
        if message["type"] == "http.response.start":
            await moody.store.dequeue_rollout("first")

    return nowhere


async def test_latest_stays_the_attempt_of_the_first_try(moody, connect):
    client = connect()
    made = await client.start_rollout(
        "x", config=RolloutConfig(max_attempts=9, retry_condition=["failed"])
    )
    moody.nowhere = claims_at_once(moody)
    moody.after = [True, False]
    await client.update_attempt(made.rollout_id, "latest", status="failed")
    attempts = await client.query_attempts(made.rollout_id)
    assert [attempt.status for attempt in attempts] == ["failed", "preparing"]


async def test_a_claim_whose_reply_never_came_goes_to_the_next_call(moody, connect):
    client = connect()
    await client.enqueue_rollout(1)
    await client.enqueue_rollout(2)
    moody.after = [True] * 4
    with pytest.raises(StoreUnavailableError):
        await client.dequeue_many_rollouts(limit=2, worker_id="w")
    claim = await client.dequeue_rollout("w")
    assert claim is not None
    assert (claim.input, claim.attempt.sequence_id) == (1, 1)
    second = await client.dequeue_rollout("w")
    assert second is not None
    assert (second.input, second.attempt.sequence_id) == (2, 2), "more than asked for is returned"
    assert await client.dequeue_rollout("w") is None


async def test_an_unanswered_claim_that_somebody_acted_on_is_not_handed_out(moody, connect):
    client = connect()
    made = await client.enqueue_rollout(1)
    moody.after = [True] * 4
    with pytest.raises(StoreUnavailableError):
        await client.dequeue_rollout("w")
    await moody.store.update_rollout(made.rollout_id, status="requeuing")
    assert await client.dequeue_rollout("w") is None
    claim = await client.dequeue_rollout("w")
    assert claim is not None
    assert (claim.rollout_id, claim.attempt.sequence_id) == (made.rollout_id, 2)


async def test_what_a_cancelled_caller_cannot_give_back_goes_to_the_next_call(moody, connect):
    client = connect()
    await client.enqueue_rollout(1)
    asked = asyncio.Event()

    async def nowhere(message: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    moody.nowhere, moody.after = nowhere, [True, False]
    claiming = asyncio.create_task(client.dequeue_rollout("w"))
    await asked.wait()
    moody.plan = [FAILURE]
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    claim = await asyncio.wait_for(client.dequeue_rollout("w"), 5)
    assert claim is not None
    assert (claim.input, claim.attempt.sequence_id) == (1, 1)


async def test_a_client_gives_back_on_closing_what_it_never_got(moody, connect):
    client = connect()
    await client.enqueue_rollout(1)
    moody.after = [True] * 4
    with pytest.raises(StoreUnavailableError):
        await client.dequeue_rollout("w")
    assert (await moody.store.query_rollouts(status_in=["preparing"])).total == 1
    await client.close()
    assert (await moody.store.query_rollouts(status_in=["requeuing"])).total == 1


async def test_the_error_of_a_long_batch_says_what_is_queued(moody, connect, monkeypatch):
    monkeypatch.setattr("agl_store_http.client.client.MAX_BATCH", 2)
    client = connect(retry_delays=())
    batch = [EnqueueRolloutRequest(input=number) for number in range(3)]
    ask = moody.app

    async def fail_the_second(scope: Any, receive: Any, send: Any) -> None:
        moody.plan = [FAILURE]
        moody.app = ask
        await ask(scope, receive, send)

    moody.app = fail_the_second
    with pytest.raises(StoreUnavailableError, match="the first 2 of 3 rollouts are queued"):
        await client.enqueue_many_rollouts(batch)


async def test_the_requests_of_one_outer_call_have_keys_of_their_own(moody, connect, monkeypatch):
    monkeypatch.setattr("agl_store_http.client.client.MAX_BATCH", 2)
    client = connect()
    batch = [EnqueueRolloutRequest(input=1) for _ in range(4)]
    made: list[Any] = []
    for _ in range(2):
        reset = current_request_key.set("outer")
        made.append([one.rollout_id for one in await client.enqueue_many_rollouts(batch)])
        for number in (1, 2):
            changed = await client.update_rollout(made[0][0], metadata={"n": number})
            assert changed.metadata == {"n": number}
        current_request_key.reset(reset)
    assert made[0] == made[1]
    assert len(set(made[0])) == 4


async def test_another_span_under_the_same_key_stays_a_duplicate(moody, connect):
    client = connect()
    claim = await client.start_rollout(1)
    ids = {"rollout_id": claim.rollout_id, "attempt_id": claim.attempt.attempt_id}
    first = Span.from_attributes(attributes={"a": 1}, span_id="0" * 16, **ids)
    other = Span.from_attributes(attributes={"a": 2}, span_id="0" * 16, **ids)
    await client.add_span(first)
    moody.plan = [FAILURE]
    assert await client.add_span(other) is None


async def test_tries_share_a_key_and_calls_do_not(moody, connect):
    client = connect()
    moody.plan = [FAILURE, FAILURE]
    await client.enqueue_rollout(1)
    await client.enqueue_rollout(2)
    first, second, third, other = moody.keys
    assert first is not None
    assert first == second == third != other


async def test_a_server_in_between_hands_the_key_on(moody, connect):
    """The reply is lost behind a server that is then replaced: the last store still knows."""
    inner = connect()
    outer = StoreApp(inner)
    servers = [
        PythonServerLauncher(app, PythonServerLauncherArgs()) for app in (outer, StoreApp(inner))
    ]
    key = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    import aiohttp

    replies = []
    async with aiohttp.ClientSession(headers=key) as session:
        for server in servers:
            await server.start()
            url = f"{server.endpoint}/v1/agl/queues/rollouts/enqueue"
            async with session.post(url, data=b'{"rollouts":[{"input":1}]}') as response:
                replies.append(await response.json())
            await server.stop()
    assert replies[0] == replies[1]
    assert (await moody.store.statistics()).get("total_rollouts") == 1


# -- servers that know less ------------------------------------------------------------------------


async def test_without_batch_routes_spans_go_one_by_one(moody, connect):
    client = connect()
    moody.without = ("/spans/batch", "/spans/next/batch")
    claim = await client.start_rollout(1)
    ids = (claim.rollout_id, claim.attempt.attempt_id)
    assert await client.get_many_span_sequence_ids([ids, ids]) == [1, 2]
    spans = [
        Span.from_attributes(attributes={}, rollout_id=ids[0], attempt_id=ids[1]) for _ in range(3)
    ]
    assert await client.add_many_spans([*spans, spans[0]]) == spans
    assert moody.requests["/spans"] == 4
    assert moody.requests["/spans/next/batch"] == 1
    assert moody.requests["/spans/batch"] == 0  # it was known by then


@pytest.mark.timing
async def test_a_server_that_does_not_wait_is_polled(moody, connect):
    client = connect()
    moody.ignore_wait = True
    began = time.monotonic()
    assert await client.dequeue_rollout("w", wait=0.3) is None
    assert 0.3 <= time.monotonic() - began < 2
    assert 3 <= moody.requests["/queues/rollouts/dequeue"] <= 10
    waiting = asyncio.create_task(client.dequeue_rollout("w", wait=10))
    await asyncio.sleep(0.1)
    rollout = await moody.store.enqueue_rollout(1)
    claim = await asyncio.wait_for(waiting, 5)
    assert claim is not None
    assert claim.rollout_id == rollout.rollout_id


async def test_a_missing_rollout_of_a_0_3_server_is_none(moody, connect):
    moody.plan = [(500, {"detail": "x", "error_type": "ResponseValidationError"})] * 9
    assert await connect().get_rollout_by_id("ro-x") is None


async def test_waiting_longer_than_a_request_may_take(moody, connect):
    client = connect(request_timeout=0.5)
    rollout = await client.start_rollout(1)
    waiting = asyncio.create_task(
        client.wait_for_rollouts(rollout_ids=[rollout.rollout_id, "unknown"], timeout=None)
    )
    await asyncio.sleep(1.0)
    assert not waiting.done()
    await moody.store.update_rollout(rollout.rollout_id, status="succeeded")
    finished = await asyncio.wait_for(waiting, 5)
    assert [item.status for item in finished] == ["succeeded"]


# -- loops, threads, processes ---------------------------------------------------------------------


def test_one_client_in_loops_one_after_another_and_in_threads():
    ready, stop = threading.Event(), threading.Event()
    url: list[str] = []

    def serve() -> None:
        async def main() -> None:
            launcher = PythonServerLauncher(
                StoreApp(InMemoryLightningStore()), PythonServerLauncherArgs()
            )
            await launcher.start()
            url.append(launcher.endpoint)
            ready.set()
            await asyncio.to_thread(stop.wait)
            await launcher.stop()

        asyncio.run(main())

    server = threading.Thread(target=serve)
    server.start()
    ready.wait(10)
    client = LightningStoreClient(url[0], **FAST)
    try:
        for _ in range(3):
            asyncio.run(client.enqueue_rollout(1))  # never closed: its loop takes care of it
        threads = [
            threading.Thread(target=lambda: asyncio.run(client.enqueue_rollout(2)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if "fork" in multiprocessing.get_all_start_methods():
            child = multiprocessing.get_context("fork").Process(
                target=lambda: asyncio.run(client.enqueue_rollout(3))
            )
            child.start()
            child.join(20)
            assert child.exitcode == 0
        copy = pickle.loads(pickle.dumps(client))
        counts = asyncio.run(copy.statistics())
        assert counts["total_rollouts"] >= 7
    finally:
        stop.set()
        server.join()


async def test_events_arrive(moody, connect):
    client = connect()
    events = client.events()
    first = asyncio.create_task(anext(events))
    while not moody.store._waiters._bus._subscriptions:
        await asyncio.sleep(0.01)
    rollout = await moody.store.enqueue_rollout(1)
    event = await asyncio.wait_for(first, 5)
    assert (event.kind, event.rollout_id, event.status) == (
        "rollout",
        rollout.rollout_id,
        "queuing",
    )
    await events.aclose()


@pytest.mark.parametrize("probes", [None, [0.1] * 300])
async def test_a_server_that_answered_before_is_waited_for(caplog, probes):
    store = InMemoryLightningStore()
    args = PythonServerLauncherArgs(launch_mode="thread")
    first = PythonServerLauncher(StoreApp(store), args)
    await first.start()
    port = int(first.endpoint.rpartition(":")[2])
    options = {} if probes is None else {"health_retry_delays": probes}
    client = LightningStoreClient(first.endpoint, **options)
    await client.enqueue_rollout(1)
    await first.stop()
    calls = [asyncio.create_task(client.enqueue_rollout(number)) for number in (2, 3, 4)]
    await asyncio.sleep(4.5)
    assert not any(call.done() for call in calls)
    said = [one for one in caplog.messages if "Waiting for the store server" in one]
    assert len(said) == 1, "one line for all calls"
    assert said[0].endswith(f"for at most {300 if probes is None else 30} s")
    again = PythonServerLauncher(StoreApp(store), replace(args, port=port))
    await again.start()
    await asyncio.wait_for(asyncio.gather(*calls), 30)
    assert len(await store.query_rollouts()) == 4
    await client.close()
    await again.stop()


async def test_the_longest_wait_counts_from_the_first_failure(moody, connect):
    client = LightningStoreClient(
        moody.url, retry_delays=(0.01,) * 5, reconnect_timeout=1.5, request_timeout=5.0
    )
    client._transport.health_retry_delays = (0.1,)
    await client.enqueue_rollout(1)
    moody.plan, moody.healthy = [FAILURE] * 9, False

    async def heal_for_a_moment() -> None:
        while True:
            await asyncio.sleep(0.9)
            moody.healthy = True
            while len(moody.plan) == left[0]:
                await asyncio.sleep(0.01)
            left[0], moody.healthy = len(moody.plan), False

    left = [8]
    healing = asyncio.create_task(heal_for_a_moment())
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        await client.statistics()
    assert time.monotonic() - began < 4.0, "each try waited anew"
    healing.cancel()
    await client.close()


async def many_claims(monkeypatch: Any) -> tuple[Any, PythonServerLauncher, LightningStoreClient]:
    """Serve 25 queued rollouts, ten to a reply."""
    monkeypatch.setattr("agl_store_http.server.api.queue.MAX_CLAIMS", 10)
    monkeypatch.setattr("agl_store_http.client.client.MAX_CLAIMS", 10)
    store = InMemoryLightningStore()
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(25)])
    server = PythonServerLauncher(StoreApp(store), PythonServerLauncherArgs(launch_mode="thread"))
    await server.start()
    return store, server, LightningStoreClient(server.endpoint)


async def test_claims_past_those_of_one_reply_are_asked_for_again(monkeypatch):
    _, server, client = await many_claims(monkeypatch)
    first = await client.dequeue_many_rollouts(limit=22, worker_id="w", wait=5)
    assert [claim.input for claim in first] == list(range(22))
    rest = await client.dequeue_many_rollouts(limit=22, worker_id="w")
    assert [claim.input for claim in rest] == [22, 23, 24]
    await client.close()
    await server.stop()


async def test_a_cancelled_caller_gives_back_the_claims_of_every_reply(monkeypatch):
    store, server, client = await many_claims(monkeypatch)
    ask = client.call
    asked = 0

    async def hang_on_the_second(*args: Any, **options: Any) -> Any:
        nonlocal asked
        reply = await ask(*args, **options)
        asked += 1
        if asked == 2:
            await asyncio.Event().wait()
        return reply

    monkeypatch.setattr(client, "call", hang_on_the_second)
    claiming = asyncio.create_task(client.dequeue_many_rollouts(limit=25, worker_id="w"))
    while asked < 2:
        await asyncio.sleep(0.01)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    queued = await store.query_rollouts(status_in=["queuing", "requeuing"])
    assert queued.total == 25
    await client.close()
    await server.stop()


async def test_a_server_that_never_answered_is_not_waited_for():
    client = LightningStoreClient("http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        await client.enqueue_rollout(1)
    assert time.monotonic() - started < 20
    await client.close()
