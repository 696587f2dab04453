"""The store server alone: one store for two processes, which talk over HTTP."""

from __future__ import annotations

import asyncio
import sys

from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore

WORKER = """
import asyncio, os, sys
from agl_store_http import LightningStoreClient

async def work():
    client = LightningStoreClient(sys.argv[1])
    while rollout := await client.dequeue_rollout(f"process-{os.getpid()}"):
        await client.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    await client.close()

asyncio.run(work())
"""


async def main() -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)  # 0: any free port
    await server.start()
    try:
        # In this process the server is a store like any other: no request is made here.
        queued = [await server.enqueue_rollout(f"task {i}") for i in range(4)]
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, server.endpoint)
        ended = await server.wait_for_rollouts(
            rollout_ids=[rollout.rollout_id for rollout in queued], timeout=30
        )
        assert await worker.wait() == 0
        print("task    status     worker")
        for rollout in sorted(ended, key=lambda one: str(one.input)):
            (attempt,) = (await server.query_attempts(rollout.rollout_id)).items
            print(f"{rollout.input:7} {rollout.status:10} {attempt.worker_id}")
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main())
