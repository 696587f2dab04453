"""Lists of any length: complete, sent in parts, and no burden while their reader is slow."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import psutil
import pytest

from agl_core.types import EnqueueRolloutRequest, Span
from agl_serving import mint_token, request_heads
from agl_store_http.server.replies import pages

SECRET = "a-secret-of-the-operator"


async def fill(store: Any, count: int, text: str = "") -> list[str]:
    requests = [EnqueueRolloutRequest(input={"n": n, "text": text}) for n in range(count)]
    return [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)]


@pytest.mark.parametrize("limit", [-1, 101, 250, 1000, 5000])
@pytest.mark.parametrize("offset", [0, 1, 99, 100, 150, 999, 1000, 2000])
async def test_a_long_list_is_what_the_store_has(served, limit, offset):
    ids = await fill(served.store, 1000)
    answer = await served.get("/rollouts", limit=limit, offset=offset)
    end = None if limit < 0 else offset + limit
    assert [item["rollout_id"] for item in answer.json["items"]] == ids[offset:end]
    assert {**answer.json, "items": 0} == {
        "items": 0,
        "limit": limit,
        "offset": offset,
        "total": 1000,
    }


@pytest.mark.parametrize("offset", [0, 3, 150, 1000])
async def test_a_long_list_with_a_filter(served, offset):
    ids = await fill(served.store, 1000)
    for rollout_id in ids[::3]:
        await served.store.update_rollout(rollout_id, status="cancelled")
    filters = {"status_in": "cancelled", "limit": -1, "offset": offset}
    for more in ({}, {"sort_by": "rollout_id", "sort_order": "desc"}):
        answer = await served.get("/rollouts", **filters, **more)
        expected = sorted(ids[::3], reverse=True) if more else ids[::3]
        assert [item["rollout_id"] for item in answer.json["items"]] == expected[offset:]
        assert answer.json["total"] == 334


async def test_rollouts_that_change_while_they_are_read_are_neither_lost_nor_doubled(served):
    ids = await fill(served.store, 2000)

    async def finish() -> None:
        for rollout_id in ids:
            await served.store.update_rollout(rollout_id, status="cancelled")
            await asyncio.sleep(0)

    changing = asyncio.create_task(finish())
    answer = await served.get("/rollouts", status_in=["queuing", "cancelled"], limit=-1)
    await changing
    assert [item["rollout_id"] for item in answer.json["items"]] == ids


@pytest.mark.usefixtures("no_interceptors")
@pytest.mark.parametrize(
    "filters", [{}, {"offset": 150}, {"status_in": ["preparing", "succeeded"]}]
)
async def test_a_list_is_complete_although_old_rollouts_are_dropped_meanwhile(
    serve, tmp_path, monkeypatch, filters
):
    sqlite = pytest.importorskip("agl_store_sqlite")
    monkeypatch.setattr(pages, "_MOST", 20)
    served = await serve(sqlite.SqliteLightningStore(tmp_path / "runs.db", durability="normal"))
    ids = [(await served.store.start_rollout(number)).rollout_id for number in range(400)]
    finished = [name for number, name in enumerate(ids[:320]) if number % 40]
    for name in finished:
        await served.store.update_attempt(name, "latest", status="succeeded")
    read, kept = type(served.store).query_rollouts, iter(range(280, 0, -35))

    async def and_drop(self: Any, **options: Any) -> Any:
        page = await read(self, **options)
        await self.vacuum(keep_last=next(kept, 0))
        return page

    monkeypatch.setattr(type(served.store), "query_rollouts", and_drop)
    answer = await served.get("/rollouts", limit=-1, **filters)
    listed = [item["rollout_id"] for item in answer.json["items"]]
    assert listed == [name for name in ids if name in set(listed)]
    there = [name for name in ids[filters.get("offset", 0) :] if name not in finished]
    assert [name for name in there if name not in listed] == []
    await served.store.close()


async def test_spans_that_come_while_they_are_read_double_none(served, monkeypatch):
    monkeypatch.setattr(pages, "_MOST", 10)
    ids = await served.claim()

    def span(number: int) -> Span:
        return Span.from_attributes(
            attributes={}, rollout_id=ids[0], attempt_id=ids[1], sequence_id=number
        )

    await served.store.add_many_spans([span(number) for number in range(100, 200)])
    read = type(served.store).query_encoded_spans

    async def and_one_more(self: Any, *args: Any, **options: Any) -> Any:
        page = await read(self, *args, **options)
        await served.store.add_span(span(1))
        return page

    monkeypatch.setattr(type(served.store), "query_encoded_spans", and_one_more)
    answer = await served.get("/spans", rollout_id=ids[0])
    numbers = [item["sequence_id"] for item in answer.json["items"]]
    assert numbers == list(range(100, 200))


@pytest.mark.usefixtures("no_interceptors")
async def test_a_list_that_fails_halfway_does_not_look_complete(served, monkeypatch):
    await fill(served.store, 1000)
    read = type(served.store).query_rollouts

    async def failing(self: Any, **options: Any) -> Any:
        if options["offset"] > 500:
            raise RuntimeError("the disk is gone")
        return await read(self, **options)

    monkeypatch.setattr(type(served.store), "query_rollouts", failing)
    with pytest.raises(Exception, match=r"payload|[Cc]onnection|disconnected"):
        await served.get("/rollouts", limit=-1)


async def test_a_read_token_gets_no_list_past_its_limit(serve, monkeypatch):
    monkeypatch.setattr(pages, "MAX_READ_ITEMS", 500)
    served = await serve(auth_token=SECRET)
    await fill(served.store, 600)

    async def count(scope: Any, **page: Any) -> Any:
        token = mint_token(SECRET, scope, lifetime=60)
        headers = {"Authorization": f"Bearer {token}"}
        answer = await served.send("GET", "/v1/agl/rollouts", params=page, headers=headers)
        return len(answer.json["items"]) if answer.status == 200 else answer.status

    assert await count("read", limit=-1) == 422
    assert await count("read", limit=501) == 422
    assert await count("read", limit=500) == 500
    assert await count("read", limit=-1, offset=100) == 500
    assert await count("algorithm", limit=-1) == 600
    # What the filter leaves out does not count.
    assert await count("read", limit=-1, status_in="running") == 0
    assert await count("read", limit=-1, status_in="queuing") == 422


def idle_reader(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"GET /v1/agl/rollouts?limit=-1 HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return connection


@pytest.fixture
async def limits(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[asyncio.TimerHandle, Callable[[], object]]]:
    """The timers of readers that do not read, and what each does; none runs out by itself."""
    started: list[tuple[asyncio.TimerHandle, Callable[[], object]]] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def remember(delay: float, callback: Any, *arguments: Any, **options: Any) -> Any:
        timer = call_later(delay, callback, *arguments, **options)
        if delay == request_heads.READ_SECONDS:
            started.append((timer, callback))
        return timer

    monkeypatch.setattr(request_heads, "READ_SECONDS", 987.0)  # no other timer has it
    monkeypatch.setattr(loop, "call_later", remember)
    return started


async def test_idle_readers_cost_little_and_are_cut_off(served, limits):
    """The list has 60 MB; whole replies for 200 readers would take 12 GB."""
    await fill(served.store, 3000, "x" * 20_000)
    process = psutil.Process()
    before = most = process.memory_info().rss
    port = int(served.url.rpartition(":")[2])
    readers = [idle_reader(port) for _ in range(200)]
    async with asyncio.timeout(110):
        while len(cut_off := [cut for timer, cut in limits if not timer.cancelled()]) < 200:
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(0.05)
        answer = await served.get("/health")
        assert answer.status == 200
        for cut in cut_off:  # their time is over
            cut()
        while len(asyncio.all_tasks()) > 40:
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(0.05)
    assert most - before < 100 * 2**20

    def drain(reader: socket.socket) -> bytes:
        data = bytearray()
        try:
            while part := reader.recv(2**20):
                data += part
        except ConnectionError:
            pass
        reader.close()
        return bytes(data)

    data = await asyncio.to_thread(drain, readers[0])
    assert b'"total"' not in data[-100:]
    for reader in readers[1:]:
        reader.close()


async def test_a_slow_reader_that_reads_gets_everything(served, monkeypatch):
    monkeypatch.setattr(request_heads, "READ_SECONDS", 1.0)
    ids = await fill(served.store, 2000, "x" * 5_000)

    def read() -> Any:
        connection = HTTPConnection("127.0.0.1", int(served.url.rpartition(":")[2]))
        connection.request("GET", "/v1/agl/rollouts?limit=-1")
        response, data = connection.getresponse(), bytearray()
        while part := response.read(200_000):
            data += part
            asyncio.run(asyncio.sleep(0.03))
        connection.close()
        return json.loads(bytes(data))

    answer = await asyncio.to_thread(read)
    assert [item["rollout_id"] for item in answer["items"]] == ids
