"""An algorithm is killed during an enqueue. After it resumes, nothing is enqueued twice.

The store is behind a real server; the algorithm is a process of its own, killed with SIGKILL. The
enqueue is held back before it reaches the database and other calls pass, so the second algorithm
looks for the rollouts of the first one before they are stored.
"""

import asyncio
import json
import sys
import textwrap
from asyncio.subprocess import PIPE

import pytest_asyncio

from agl_core.store import current_request_key
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import StoreApp
from agl_store_sqlite import SqliteLightningStore

ALGORITHM = textwrap.dedent(
    """
    import asyncio, json, sys
    from agl_algorithm_kit import StoredRun
    from agl_store_http import LightningStoreClient
    from agl_core.types import EnqueueRolloutRequest

    async def main():
        store = LightningStoreClient(sys.argv[1])
        run = await StoredRun.open(store, "night")
        print("open", flush=True)
        sys.stdin.readline()
        tasks = [EnqueueRolloutRequest(input=number) for number in range(3)]
        enqueued = await run.enqueue(tasks, batch="b")
        print(json.dumps([rollout.rollout_id for rollout in enqueued]), flush=True)
        await store.close()

    asyncio.run(main())
    """
)


class Held:
    """A store that reports enqueues, and that can hold back them or their replies."""

    def __init__(self, store: SqliteLightningStore) -> None:
        self._enqueue = store.enqueue_many_rollouts
        self.keys: asyncio.Queue[str | None] = asyncio.Queue()
        self.committed = asyncio.Event()
        self.requests = asyncio.Event()
        self.replies = asyncio.Event()
        self.requests.set()
        self.replies.set()
        store.enqueue_many_rollouts = self.enqueue_many_rollouts

    async def enqueue_many_rollouts(self, rollouts):
        self.keys.put_nowait(current_request_key.get())
        await self.requests.wait()
        enqueued = await self._enqueue(rollouts)
        self.committed.set()
        await self.replies.wait()
        return enqueued


@pytest_asyncio.fixture
async def served(tmp_path):
    store = SqliteLightningStore(tmp_path / "store.db")
    held = Held(store)
    launcher = PythonServerLauncher(StoreApp(store), PythonServerLauncherArgs())
    await launcher.start()
    yield store, held, launcher.access_endpoint
    held.requests.set()
    held.replies.set()
    await launcher.stop()
    await store.close()


async def algorithm(url):
    """Start an algorithm that has opened its run and enqueues after a line on its stdin."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ALGORITHM, url, stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    return process


def go(process) -> None:
    process.stdin.write(b"\n")


async def killed(process) -> None:
    process.kill()
    await process.wait()


async def outcome(process) -> list[str]:
    ids = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
    assert await process.wait() == 0
    return ids


async def test_an_enqueue_that_arrives_after_its_process_died_happens_once(served):
    store, held, url = served
    first = await algorithm(url)
    held.requests.clear()
    go(first)
    key = await asyncio.wait_for(held.keys.get(), 30)
    await killed(first)
    second = await algorithm(url)  # which finds nothing enqueued
    go(second)
    # The server still runs, so it treats both requests as one call.
    held.requests.set()
    ids = await outcome(second)
    assert key is not None
    assert held.keys.empty()
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == ids
    assert len(ids) == 3


async def test_an_enqueue_whose_reply_was_lost_happens_once(served):
    store, held, url = served
    first = await algorithm(url)
    held.replies.clear()
    go(first)
    await asyncio.wait_for(held.committed.wait(), 30)
    await killed(first)
    held.replies.set()
    second = await algorithm(url)
    go(second)
    ids = await outcome(second)
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == ids
    assert len(ids) == 3


async def test_an_enqueue_repeated_through_another_server_happens_once(tmp_path):
    # Each server sees one of the two requests only.
    store = SqliteLightningStore(tmp_path / "store.db")
    held = Held(store)
    launchers = [
        PythonServerLauncher(StoreApp(store), PythonServerLauncherArgs()) for _ in range(2)
    ]
    for launcher in launchers:
        await launcher.start()
    first = await algorithm(launchers[0].access_endpoint)
    held.requests.clear()
    go(first)
    keys = [await asyncio.wait_for(held.keys.get(), 30)]
    await killed(first)
    second = await algorithm(launchers[1].access_endpoint)
    go(second)
    keys.append(await asyncio.wait_for(held.keys.get(), 30))
    held.requests.set()
    ids = await outcome(second)
    assert keys[0] == keys[1] is not None
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == ids
    for launcher in launchers:
        await launcher.stop()
    await store.close()
