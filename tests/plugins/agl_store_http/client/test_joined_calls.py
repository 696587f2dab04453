from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence

from agl_core.errors import InvalidArgumentError, StoreUnavailableError
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_http.client.joining import JoinedCalls
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
