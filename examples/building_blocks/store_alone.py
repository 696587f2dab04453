"""The store alone: three rollouts on their way from the queue to their final status."""

from __future__ import annotations

import asyncio

import agl_core as agl
from agl_store_memory import InMemoryLightningStore


async def main() -> None:
    store = InMemoryLightningStore()
    prompt = agl.PromptTemplate(template="Solve {task}.", engine="f-string")
    resources = await store.add_resources({"prompt": prompt})
    for task in ("2+2", "3*3", "7-5"):
        await store.enqueue_rollout(task, resources_id=resources.resources_id)

    # What a runner does. A claim opens an attempt; the attempt's status decides the rollout's.
    succeeded = await store.dequeue_rollout("worker-1")
    failed = await store.dequeue_rollout("worker-2")
    assert succeeded is not None
    assert failed is not None
    await store.update_attempt(succeeded.rollout_id, "latest", status="succeeded")
    await store.update_attempt(failed.rollout_id, "latest", status="failed")

    # What an algorithm does: it waits, and it is woken when a rollout ends.
    ids = [succeeded.rollout_id, failed.rollout_id]
    ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=5)
    assert len(ended) == len(ids)

    print("task  status     resources")
    for rollout in (await store.query_rollouts()).items:
        print(f"{rollout.input:5} {rollout.status:10} {rollout.resources_id}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
