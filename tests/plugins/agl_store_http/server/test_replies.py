"""Calls that are sent twice, and claims whose replies are lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agl_store_http.server.replies.memory import ReplyMemory
from agl_store_http.server.replies.reply import Reply

DEQUEUE = "/queues/rollouts/dequeue"


def keyed(key: str) -> dict[str, Any]:
    return {"headers": {"Idempotency-Key": key}}


# -- the memory ------------------------------------------------------------------------------------


async def test_a_key_runs_once_also_concurrently():
    memory = ReplyMemory()
    runs = 0
    go = asyncio.Event()

    async def run() -> Reply:
        nonlocal runs
        runs += 1
        await go.wait()
        return Reply(b"%d" % runs, 200)

    tasks = [asyncio.create_task(memory.once("k", run)) for _ in range(5)]
    await asyncio.sleep(0)
    go.set()
    assert {reply.body for reply in await asyncio.gather(*tasks) if reply} == {b"1"}
    assert (await memory.once("other", run)).body == b"2"  # type: ignore[union-attr]


async def test_what_failed_or_did_nothing_runs_again():
    memory = ReplyMemory()
    replies = iter([RuntimeError("no"), None, Reply(b"done", 200)])

    async def run() -> Reply | None:
        reply = next(replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    with pytest.raises(RuntimeError, match="no"):
        await memory.once("k", run)
    assert await memory.once("k", run) is None
    for _ in range(2):
        assert (await memory.once("k", run)).body == b"done"  # type: ignore[union-attr]


async def test_a_cancelled_call_lets_the_next_one_run():
    memory = ReplyMemory()
    started = asyncio.Event()

    async def stuck() -> Reply:
        started.set()
        await asyncio.Event().wait()
        return Reply(b"never", 200)

    async def run() -> Reply:
        return Reply(b"second", 200)

    first = asyncio.create_task(memory.once("k", stuck))
    await started.wait()
    second = asyncio.create_task(memory.once("k", run))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).body == b"second"  # type: ignore[union-attr]


async def test_memory_is_bounded_by_bytes_and_by_age():
    async def run() -> Reply:
        return Reply(b"x" * 1000, 200)

    memory = ReplyMemory(max_bytes=10_000)
    for number in range(50):
        await memory.once(str(number), run)
    assert len(memory) == 7  # of 1000 bytes, key and overhead each
    forgetful = ReplyMemory(retention=0.0)
    await forgetful.once("k", run)
    assert len(forgetful) == 0


# -- over HTTP -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        ("/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]}, "total_rollouts"),
        ("/rollouts", {"input": 1}, "total_rollouts"),
        ("/resources", {}, "total_resources"),
    ],
)
async def test_a_creating_call_sent_twice_creates_once(served, path, body, counted):
    first = await served.post(path, body, **keyed("a"))
    again = await served.post(path, body, **keyed("a"))
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json
    assert (await served.store.statistics())[counted] == 1
    assert (await served.post(path, body, **keyed("b"))).json != first.json


async def test_keys_count_per_path(served):
    ids = [(await served.claim())[0] for _ in range(2)]
    for rollout_id in ids:
        answer = await served.post(f"/rollouts/{rollout_id}/attempts", {}, **keyed("same"))
        assert answer.json["rollout_id"] == rollout_id
        assert answer.json["attempt"]["sequence_id"] == 2


async def test_a_claim_asked_for_twice_is_the_same_claim(served):
    for number in range(2):
        await served.store.enqueue_rollout(number)
    first = await served.post(DEQUEUE, {"worker_id": "w"}, **keyed("a"))
    again = await served.post(DEQUEUE, {"worker_id": "w"}, **keyed("a"))
    other_worker = await served.post(DEQUEUE, {"worker_id": "v"}, **keyed("a"))
    assert first.json == again.json
    assert other_worker.json[0]["input"] == 1
    assert (await served.store.statistics()).get("total_attempts") == 2


async def test_an_empty_queue_is_not_remembered(served):
    assert (await served.post(DEQUEUE, {}, **keyed("a"))).json == []
    await served.store.enqueue_rollout(1)
    assert len((await served.post(DEQUEUE, {}, **keyed("a"))).json) == 1


async def test_asking_for_nothing_under_its_key_gives_a_claim_back(served):
    await served.store.enqueue_rollout("x")
    first = (await served.post(DEQUEUE, {"worker_id": "w"}, **keyed("a"))).json[0]
    gave = await served.post(DEQUEUE, {"worker_id": "w", "limit": 0}, **keyed("a"))
    assert gave.json == []
    again = (await served.post(DEQUEUE, {"worker_id": "w"}, **keyed("b"))).json[0]
    assert again["rollout_id"] == first["rollout_id"]
    assert again["attempt"]["sequence_id"] == 2
    attempts = await served.store.query_attempts(first["rollout_id"])
    assert [item.status for item in attempts.items] == ["unresponsive", "preparing"]


async def test_a_claim_is_given_back_by_another_server_process(serve, tmp_path):
    sqlite = pytest.importorskip("agl_store_sqlite")
    stores = [sqlite.SqliteLightningStore(tmp_path / "agl.db") for _ in range(2)]
    claiming, other = [await serve(store=store) for store in stores]
    await claiming.store.enqueue_rollout("x")
    first = (await claiming.post(DEQUEUE, {"worker_id": "w"}, **keyed("a"))).json[0]
    gave = await other.post(DEQUEUE, {"worker_id": "w", "limit": 0}, **keyed("a"))
    assert gave.json == []
    rollout = await other.store.get_rollout_by_id(first["rollout_id"])
    assert rollout is not None
    assert rollout.status == "requeuing"
    for store in stores:
        await store.close()


async def poll_and_leave(served: Any, body: dict[str, Any]) -> None:
    """Begin a long poll, and close the connection while it waits."""
    polling = asyncio.create_task(served.post(DEQUEUE, {**body, "wait": 60}))
    while served.store._waiters.waiting_claims == 0:
        await asyncio.sleep(0.005)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling


async def test_a_waiting_client_that_left_claims_nothing(served):
    await poll_and_leave(served, {"worker_id": "w"})
    while served.store._waiters.waiting_claims > 0:
        await asyncio.sleep(0.005)
    await served.store.enqueue_rollout("x")
    assert (await served.store.statistics()).get("total_attempts") == 0
    assert len((await served.post(DEQUEUE, {"worker_id": "v"})).json) == 1


class Caller:
    """Calls the app without a socket, to decide when its connection closes."""

    def __init__(self, app: Any, body: dict[str, Any], headers: dict[str, str] | None = None):
        self.app = app
        self.gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.body = json.dumps(body).encode()
        self.headers = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        self.sent: list[Any] = []
        self.read = False

    async def receive(self) -> Any:
        if self.read:
            return await asyncio.shield(self.gone)
        self.read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self) -> list[Any]:
        path = f"/v1/agl{DEQUEUE}"
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), *self.headers],
        }
        await self.app(scope, self.receive, self.send)
        return json.loads(self.sent[1]["body"])


@pytest.mark.parametrize(
    ("worker_id", "headers", "sequence_id"),
    [("w", {}, 1), (None, {}, 2), ("w", {"Idempotency-Key": "k"}, 1)],
    ids=["the same worker gets it", "it is queued again", "the same key gets it"],
)
async def test_a_claim_without_a_taker_is_not_lost(served, worker_id, headers, sequence_id):
    """Work arrives and the connection closes in one turn of the loop."""
    body = {"worker_id": worker_id}
    left = Caller(served.app, {**body, "wait": 60}, headers)
    polling = asyncio.create_task(left.run())
    while served.store._waiters.waiting_claims == 0:
        await asyncio.sleep(0)
    rollout = await served.store.enqueue_rollout("x")
    left.gone.set_result({"type": "http.disconnect"})
    await polling
    assert (await served.store.statistics()).get("total_attempts") == 1
    claimed = await Caller(served.app, body, headers).run()
    assert [item["rollout_id"] for item in claimed] == [rollout.rollout_id]
    assert claimed[0]["attempt"]["sequence_id"] == sequence_id
    assert await Caller(served.app, body).run() == []


async def test_a_key_of_another_body_is_refused(served):
    path, key = "/queues/rollouts/enqueue", {"Idempotency-Key": "k"}
    first = await served.post(path, {"rollouts": [{"input": 1}]}, headers=key)
    again = await served.post(path, {"rollouts": [{"input": 1}]}, headers=key)
    other = await served.post(path, {"rollouts": [{"input": 2}]}, headers=key)
    assert (first.status, again.body) == (201, first.body)
    assert (other.status, other.json["detail"]) == (
        422,
        "this Idempotency-Key was used for another request body",
    )
    assert (await served.store.statistics())["total_rollouts"] == 1
