"""Two processes on one run: one leads it, and the other is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agl_algorithm_kit import StoredRun, lease as lease_module
from agl_core.errors import RunInUseError
from agl_core.types import EnqueueRolloutRequest

sqlite = pytest.importorskip("agl_store_sqlite")

LEADER = """
import asyncio, sys
from agl_algorithm_kit import StoredRun
from agl_store_sqlite import SqliteLightningStore

async def main():
    run = await StoredRun.open(SqliteLightningStore(sys.argv[1]), "night")
    print("leads", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
    yield store
    await store.close()


@pytest.fixture
def leader(tmp_path: Path, store: Any) -> Any:
    command = [sys.executable, "-c", LEADER, str(tmp_path / "runs.db")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"leads\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_run_that_cannot_be_read_is_free_for_others(store, monkeypatch):
    async def fail(_: StoredRun) -> None:
        raise OSError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(StoredRun, "_read", fail)
        with pytest.raises(OSError, match="lost"):
            await StoredRun.open(store, "night")
    monkeypatch.setattr(lease_module, "_PROCESS", "that of another process")
    monkeypatch.setattr(lease_module, "_place", lambda: {"host": "elsewhere"})
    run = await asyncio.wait_for(StoredRun.open(store, "night"), 5)
    await run.finish()


async def test_the_second_process_is_refused(store, leader):
    started = time.monotonic()
    with pytest.raises(RunInUseError, match=f"led by process {leader.pid}"):
        await StoredRun.open(store, "night")
    assert time.monotonic() - started < 15
    other = await StoredRun.open(store, "day")
    await other.finish()


async def test_a_killed_process_is_followed_at_once(store, leader):
    leader.kill()
    leader.wait()
    started = time.monotonic()
    run = await StoredRun.open(store, "night")
    assert time.monotonic() - started < 3
    await run.finish()


async def test_a_dead_process_elsewhere_is_waited_for(store, leader, monkeypatch):
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 1.5)
    monkeypatch.setattr(lease_module, "_may_take", lambda held: held["process"] is None)
    leader.kill()
    leader.wait()
    run = await StoredRun.open(store, "night")
    await run.finish()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@LINUX
@pytest.mark.parametrize("other", [{"boot": "x"}, {"pid_namespace": 1}, "of an older version"])
async def test_a_process_id_of_another_container_says_nothing(monkeypatch, store, other):
    """Both containers have one host name, and in both the algorithm is process 1."""
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 1.5)
    monkeypatch.setattr(lease_module, "_LOOK_SECONDS", 0.01)
    lease = lease_module.Lease(store, "night")
    held = lease._content() | {"process": "another"}
    assert lease_module._may_take(held)  # a container that was started again
    if isinstance(other, str):
        del held["boot"], held["pid_namespace"]
    else:
        held |= other
    for pid in (held["pid"], 2**22 + 1):  # no process has that one
        assert not lease_module._may_take(held | {"pid": pid})
    await lease._put(held)

    async def renew() -> None:
        for beat in range(1000):
            await lease._put(held | {"beat": beat})
            await asyncio.sleep(0.01)

    renewing = asyncio.create_task(renew())
    with pytest.raises(RunInUseError):
        await lease.take()
    renewing.cancel()
    await asyncio.wait({renewing})
    await lease.take()  # once nobody renews it
    await lease.release()


async def test_a_finished_run_lets_go(store, monkeypatch):
    run = await StoredRun.open(store, "night")
    await run.finish()
    monkeypatch.setattr(lease_module, "_PROCESS", "another")
    started = time.monotonic()
    await (await StoredRun.open(store, "night")).finish()
    assert time.monotonic() - started < 3


async def test_of_many_at_once_one_leads(store, monkeypatch):
    """Each with the key of the same term; the store executes the first."""
    leases = [lease_module.Lease(store, "night") for _ in range(8)]
    taken: list[bool] = []
    for number, lease in enumerate(leases):
        monkeypatch.setattr(lease_module, "_PROCESS", f"process {number}")
        taken.append(await lease._write_first(0))
    assert taken == [True] + [False] * 7


async def test_a_process_that_was_stopped_finds_its_successor(store, monkeypatch):
    old = await StoredRun.open(store, "night")
    await old.save({"step": 1})
    monkeypatch.setattr(lease_module, "_PROCESS", "another")
    monkeypatch.setattr(lease_module, "_may_take", lambda held: True)
    new = await StoredRun.open(store, "night")
    await new.save({"step": 2})
    monkeypatch.undo()
    assert old._lease is not None
    old._lease._checked -= 60
    request = [EnqueueRolloutRequest(input=1)]
    for write in (old.save({"step": 0}), old.enqueue(request, batch="b"), old.finish()):
        with pytest.raises(RunInUseError):
            await write
    assert (await store.query_rollouts()).total == 0
    checkpoint = (await store.get_resources_by_id("run:night")).resources["checkpoint"]
    assert checkpoint.state == {"step": 2}
    for run in (old, new):
        assert run._lease is not None
        if run._lease._renewing is not None:
            run._lease._renewing.cancel()
    await asyncio.sleep(0)
