"""Worker ids that are known before the worker runs, and workers that start again under theirs."""

from __future__ import annotations

from agl_core.execution import ThreadingEvent
from agl_exec_cs import RunnerClient, RunStore, first_worker
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore


def test_a_seed_gives_the_same_id_again() -> None:
    assert first_worker("pod-1") == first_worker("pod-1")
    ids = {first_worker(f"pod-{i}") for i in range(1000)} | {first_worker() for _ in range(1000)}
    assert len(ids) == 2000
    assert all(each & 0xFF == 0 and each < 2**53 for each in ids)  # exact in JSON


async def test_a_worker_that_starts_again_fails_what_it_had_left_open() -> None:
    store = RunStore(InMemoryLightningStore())
    server = LightningStoreServer(store, port=0)
    await server.start()
    client = RunnerClient(server.endpoint, ThreadingEvent(), 5)
    try:
        for task in ("mine", "other"):
            await store.enqueue_rollout(task)
            await client.dequeue_rollout(f"Worker-{task}")
        await client.come("Worker-mine")
        statuses = {
            each.input: (each.status, (await store.query_attempts(each.rollout_id))[0].metadata)
            for each in await store.query_rollouts()
        }
        assert statuses["mine"] == ("failed", {"error": "its runner died"})
        assert statuses["other"][0] == "preparing"
    finally:
        await client.close()
        await server.stop()
