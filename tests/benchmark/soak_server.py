"""Checks that the server's memory is constant under sixty-four busy runners for ten minutes.

``python tests/benchmark/soak_server.py [MINUTES]`` prints the server's resident memory each minute.
The runners' calls (heartbeats, updates, reads, waits, duplicate spans) store no new records, so any
growth belongs to the server itself.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection

import psutil

from agl_core.types import Span
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore

RUNNERS = 64


def serve(told: Connection) -> None:
    # The server logs duplicate spans as errors; here they are the load.
    logging.getLogger("agl_store_kit").setLevel(logging.CRITICAL)

    async def main() -> None:
        server = LightningStoreServer(InMemoryLightningStore(), port=0)
        await server.start()
        told.send(server.endpoint)
        await asyncio.Event().wait()

    asyncio.run(main())


async def runner(endpoint: str, number: int, deadline: float) -> int:
    """Make calls on one rollout until the deadline; return their number."""
    client = LightningStoreClient(endpoint)
    worker = f"worker-{number}"
    rollout = await client.start_rollout({"task": number}, worker_id=worker)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    spans = [
        Span.from_attributes(
            attributes={"text": "x" * 150}, rollout_id=ids[0], attempt_id=ids[1], sequence_id=i
        )
        for i in range(10)
    ]
    calls = 0
    while time.monotonic() < deadline:
        await client.add_many_spans(spans)
        await client.update_worker(worker, {"calls": 1})
        await client.update_attempt(*ids, status="running", metadata={"busy": True})
        await client.get_next_span_sequence_id(*ids)
        await client.query_spans(ids[0], limit=5)
        await client.wait_for_rollouts(rollout_ids=[ids[0]], timeout=0.01)
        await client.dequeue_rollout(worker, wait=0.01)
        calls += 7
    await client.close()
    return calls


async def main(minutes: float) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    process = psutil.Process(server.pid)
    endpoint = await asyncio.to_thread(ours.recv)
    start = time.monotonic()
    deadline = start + 60 * minutes
    running = [asyncio.ensure_future(runner(endpoint, i, deadline)) for i in range(RUNNERS)]
    while time.monotonic() < deadline:
        await asyncio.wait(running, timeout=min(60.0, 60 * minutes / 5))
        resident = process.memory_info().rss / 1e6
        print(f"{time.monotonic() - start:6.0f} s  {resident:7.1f} MB", flush=True)
    calls = sum(await asyncio.gather(*running))
    print(f"{calls:,} calls, {calls / 60 / minutes:,.0f}/s")
    os.kill(process.pid, 9)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0))
