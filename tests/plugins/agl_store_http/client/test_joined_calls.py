from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence

import pytest

from agl_core.errors import AttemptNotFoundError, InvalidArgumentError, StoreUnavailableError
from agl_core.types import Span
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_http.client.joining import JoinedCalls
from agl_store_http.client.transport import StoreFailedError
from agl_store_memory import InMemoryLightningStore


class Doubler:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if 13 in items:
            raise InvalidArgumentError("13 is refused")
        return [2 * item for item in items]


async def test_calls_that_come_meanwhile_go_together() -> None:
    send = Doubler()
    call = JoinedCalls(send)
    calls = [asyncio.create_task(call([1, 2]))]
    await asyncio.sleep(0.01)
    calls += [asyncio.create_task(call([i])) for i in (3, 4, 5)]
    await asyncio.sleep(0.01)
    send.gate.set()
    assert await asyncio.gather(*calls) == [[2, 4], [6], [8], [10]]
    assert send.batches == [[1, 2], [3, 4, 5]]
    assert await call([6]) == [12]


async def test_the_items_of_one_call_do_not_fail_the_others() -> None:
    send = Doubler()
    send.gate.set()
    call = JoinedCalls(send)
    results = await asyncio.gather(*(call([i]) for i in (12, 13, 14)), return_exceptions=True)
    assert results[0] == [24]
    assert results[2] == [28]
    assert isinstance(results[1], InvalidArgumentError)
    assert send.batches == [[12, 13, 14], [12], [13], [14]]


async def test_a_lost_server_fails_all_at_once() -> None:
    send = Doubler()
    send.gate.set()
    send.error = StoreUnavailableError("gone")
    call = JoinedCalls(send)
    results = await asyncio.gather(*(call([i]) for i in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailableError] * 3
    assert len(send.batches) == 1


async def test_a_server_that_fails_with_the_items_of_one_call_serves_the_others() -> None:
    sent: list[list[int]] = []

    async def send(items: Sequence[int]) -> Sequence[int]:
        sent.append(list(items))
        if 13 in items:
            raise StoreFailedError("500")
        return items

    call = JoinedCalls(send)
    results = await asyncio.gather(*(call([i]) for i in (12, 13, 14)), return_exceptions=True)
    assert [results[0], results[2]] == [[12], [14]]
    assert isinstance(results[1], StoreFailedError)
    assert sent == [[12, 13, 14], [12], [13], [14]]


async def test_a_server_that_fails_with_all_is_not_asked_for_each() -> None:
    asked = 0

    async def send(items: Sequence[int]) -> Sequence[int]:
        nonlocal asked
        asked += 1
        raise StoreFailedError("500")

    call = JoinedCalls(send)
    results = await asyncio.gather(*(call([i]) for i in range(9)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreFailedError] * 9
    assert asked == 3


async def test_calls_that_are_sent_apart_can_be_cancelled() -> None:
    apart = asyncio.Event()

    async def send(items: Sequence[int]) -> Sequence[int]:
        raise InvalidArgumentError("no")

    async def send_again(items: Sequence[int]) -> Sequence[int]:
        apart.set()
        await asyncio.Event().wait()
        return items

    call = JoinedCalls(send, send_again)
    calls = [asyncio.create_task(call([i])) for i in range(2)]
    await apart.wait()
    lane = call._lanes[asyncio.get_running_loop()]
    assert lane.sender is not None
    lane.sender.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2


async def test_spans_that_are_sent_again_are_no_duplicates_of_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two requests were needed, and a span of the second is refused."""
    monkeypatch.setattr("agl_store_http.client.spans.MAX_BATCH", 3)
    store = InMemoryLightningStore()
    good, bad = await store.start_rollout(1), await store.start_rollout(2)
    server = LightningStoreServer(store, port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    spans = [
        Span.from_attributes(
            attributes={}, rollout_id=good.rollout_id, attempt_id=good.attempt.attempt_id
        )
        for _ in range(4)
    ]
    wrong = [spans[0].model_copy(update={"rollout_id": bad.rollout_id, "attempt_id": "at-none"})]
    # One call is on its way, and the other two go together.
    results = await asyncio.gather(
        client.add_many_spans(spans[:1]),
        client.add_many_spans(spans[1:]),
        client.add_many_spans(wrong),
        return_exceptions=True,
    )
    assert results[:2] == [spans[:1], spans[1:]]
    assert isinstance(results[2], AttemptNotFoundError)
    await client.close()
    await server.stop()


async def test_a_cancelled_caller_leaves_the_others() -> None:
    send = Doubler()
    call = JoinedCalls(send)
    first, second = asyncio.create_task(call([1])), asyncio.create_task(call([2]))
    await asyncio.sleep(0.01)
    first.cancel()
    send.gate.set()
    assert await second == [4]
    assert first.cancelled() or await asyncio.gather(first, return_exceptions=True)


def test_each_event_loop_has_its_own_calls() -> None:
    class Echo:
        async def __call__(self, items: Sequence[int]) -> Sequence[int]:
            await asyncio.sleep(0)
            return items

    call = JoinedCalls(Echo())
    for number in range(3):
        assert asyncio.run(call([number])) == [number]


async def test_many_rollouts_share_requests() -> None:
    store = InMemoryLightningStore()
    rollouts = [await store.start_rollout(i) for i in range(50)]
    server = LightningStoreServer(store, port=0)
    await server.start()
    client = pickle.loads(pickle.dumps(LightningStoreClient(server.endpoint)))
    sent: list[str] = []
    request = client.request

    async def counted(method: str, path: str, *rest: object, **more: object) -> object:
        sent.append(path)
        return await request(method, path, *rest, **more)

    client.request = counted
    try:
        ids = await asyncio.gather(
            *(
                client.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id)
                for rollout in rollouts
            )
        )
    finally:
        await client.close()
        await server.stop()
    assert ids == [1] * 50
    assert len(sent) <= 3
