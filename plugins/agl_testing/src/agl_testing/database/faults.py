"""A server that is missing, killed or started again, and the end of a store."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from agl_core.errors import StoreDataError, StoreUnavailableError
from agl_core.store import LightningStore
from agl_testing.database.base import DatabaseFaultTests, DatabaseServer, Writers, opened

__all__ = ["ServerFaultTests", "inputs_after_a_fork"]

FORKED = """
    import asyncio, os, pickle, sys

    store = pickle.loads(bytes.fromhex(sys.argv[1]))
    asyncio.run(store.enqueue_rollout("parent"))
    child = os.fork()
    if child == 0:
        asyncio.run(store.enqueue_rollout("child"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(*sorted(rollout.input for rollout in asyncio.run(store.query_rollouts())))
    asyncio.run(store.close())
"""


async def inputs_after_a_fork(store: LightningStore) -> list[str]:
    """Open a copy of a store in another process, which writes, forks, and writes in the child.

    Args:
        store: The store; it is closed.

    Returns:
        The inputs of all rollouts, sorted, as the process reads them at its end.
    """
    state = pickle.dumps(store).hex()
    await store.close()
    command = [sys.executable, "-c", textwrap.dedent(FORKED), state]
    output = await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=120)
    return output.split()


class ServerFaultTests(DatabaseFaultTests):
    """No acknowledged write is lost, and calls go on once the server is back."""

    async def test_the_error_names_a_missing_server(self, database: DatabaseServer):
        database.kill()
        async with opened(database.connect(timeout_seconds=0.3)) as store:
            start = time.monotonic()
            for call in (
                store.enqueue_rollout("x"),
                store.query_rollouts(),
                store.dequeue_rollout("w"),
            ):
                with pytest.raises(StoreUnavailableError) as raised:
                    await call
                assert database.name in str(raised.value)
            assert time.monotonic() - start < 10

    async def test_a_call_waits_for_a_server_that_starts(self, database: DatabaseServer):
        database.kill()
        async with opened(database.connect(timeout_seconds=60)) as store:
            waiting = asyncio.ensure_future(store.enqueue_rollout("y"))
            await asyncio.sleep(0.1)  # it finds no server
            await asyncio.to_thread(database.start)
            assert (await waiting).status == "queuing"

    async def test_a_killed_server_loses_no_acknowledged_write(self, database: DatabaseServer):
        async with opened(database.connect(timeout_seconds=0.3)) as store:
            writers = Writers(store)
            for acknowledged in (20, 40):
                await writers.until(acknowledged)
                database.kill()
                await writers.until_refused()
                await asyncio.to_thread(database.start)
            await writers.until(60)
            await writers.check()

    async def test_waiting_calls_survive_a_restart_of_the_server(self, database: DatabaseServer):
        async with (
            opened(database.connect(timeout_seconds=20)) as store,
            opened(database.connect(timeout_seconds=20)) as other,
        ):
            rollout = await store.enqueue_rollout("x")
            assert await store.dequeue_rollout("w0") is not None
            ids = [rollout.rollout_id]
            finished = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=ids, timeout=60))
            work = asyncio.ensure_future(store.dequeue_rollout("w", wait=60))
            await asyncio.sleep(0.2)  # both wait
            database.kill()
            await asyncio.sleep(0.2)  # both notice
            await asyncio.to_thread(database.start)
            await other.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            second = await other.enqueue_rollout("y")
            assert [r.status for r in await asyncio.wait_for(finished, 30)] == ["succeeded"]
            claimed = await asyncio.wait_for(work, 30)
            assert claimed is not None
            assert claimed.rollout_id == second.rollout_id

    async def test_a_closed_store_fails_its_calls_and_leaves_no_thread(
        self, database: DatabaseServer
    ):
        before = set(threading.enumerate())
        store = database.connect()
        waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=60))
        await asyncio.sleep(0.3)  # it waits
        await store.close()
        await store.close()
        with pytest.raises(StoreDataError, match="closed"):
            await waiting
        with pytest.raises(StoreDataError, match="closed"):
            await store.enqueue_rollout("x")
        left = set(threading.enumerate()) - before
        assert not [thread for thread in left if "asyncio" not in thread.name]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
    async def test_a_forked_child_connects_again(self, database: DatabaseServer):
        assert await inputs_after_a_fork(database.connect()) == ["child", "parent"]
