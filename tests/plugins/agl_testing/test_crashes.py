"""A crash test that fails says why at once, and leaves no process behind."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from agl_core.errors import InvalidArgumentError
from agl_store_memory import InMemoryLightningStore
from agl_testing.crashes import StoreSpec, driver, survive_kills

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")


class ReadOnlyStore(InMemoryLightningStore):
    """A store on which no run gets far."""

    async def enqueue_many_rollouts(self, rollouts):
        raise InvalidArgumentError("this store is read-only")


def test_a_run_that_fails_by_itself_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started: list[psutil.Process] = []
    start = driver.Actors.start

    def noting(self: driver.Actors, actor: str, **arguments: object) -> int:
        pid = start(self, actor, **arguments)
        started.append(psutil.Process(pid))
        return pid

    monkeypatch.setattr(driver.Actors, "start", noting)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    spec = StoreSpec("test_crashes:ReadOnlyStore", {})
    with pytest.raises(AssertionError, match="fails without a kill") as raised:
        survive_kills(tmp_path, lambda _: spec, 1)
    assert "this store is read-only" in str(raised.value)
    assert len(started) == 3  # a store server, and the training twice
    _, left = psutil.wait_procs(started, timeout=10)
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
