"""The clock of a store's machine is set while attempts run: none of them ends for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agl_core.types import RolloutConfig
from agl_store_memory import InMemoryLightningStore


class Clocks:
    """Both clocks of a process; ``time.time`` may be set, the other only goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.steady = 1_000_000.0, 5_000.0
        monkeypatch.setattr(time, "time", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic_ns", lambda: int(self.steady * 1e9))

    def go(self, seconds: float, jump: float = 0.0) -> None:
        self.wall += seconds + jump
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


async def start(store: InMemoryLightningStore, **limits: Any) -> str:
    return (await store.start_rollout(1, config=RolloutConfig(**limits))).rollout_id


async def status(store: InMemoryLightningStore, rollout_id: str) -> str:
    await store.run_watchdog()
    attempt = await store.get_latest_attempt(rollout_id)
    assert attempt is not None
    return attempt.status


JUMPS = pytest.mark.parametrize("jump", [3600.0, -3600.0, 86_400.0 * 400])


@JUMPS
async def test_a_timeout_keeps_its_length(clocks, jump):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    rollout = await start(store, timeout_seconds=100)
    clocks.go(40)
    assert await status(store, rollout) == "preparing"
    clocks.go(5, jump)
    assert await status(store, rollout) == "preparing"
    clocks.go(50)
    assert await status(store, rollout) == "preparing"
    clocks.go(10)
    assert await status(store, rollout) == "timeout"


@JUMPS
async def test_a_heartbeat_of_before_counts(clocks, jump):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    rollout = await start(store, unresponsive_seconds=60)
    await store.update_attempt(rollout, "latest", last_heartbeat_time=clocks.wall)
    assert await status(store, rollout) == "preparing"
    clocks.go(30, jump)
    assert await status(store, rollout) == "preparing"
    await store.update_attempt(rollout, "latest", last_heartbeat_time=clocks.wall)
    clocks.go(50)
    assert await status(store, rollout) == "preparing"
    clocks.go(20)
    assert await status(store, rollout) == "unresponsive"


@pytest.mark.parametrize("jumps", [(3600, 7200), (3600, -3600), (-3600, 3600), (-50, -50)])
async def test_several_jumps(clocks, jumps):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    rollout = await start(store, timeout_seconds=100)
    for jump in jumps:
        clocks.go(20, jump)
        assert await status(store, rollout) == "preparing"
        other = await start(store, timeout_seconds=100)
    clocks.go(50)
    assert await status(store, rollout) == "preparing"
    clocks.go(40)
    assert await status(store, other) == "preparing"
    clocks.go(200)
    assert await status(store, rollout) == "timeout"
    assert await status(store, other) == "timeout"


async def test_attempts_after_a_jump_have_their_own_times(clocks):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    await start(store, timeout_seconds=10_000)
    for jump in (3600, -3600):
        clocks.go(10, jump)
        await store.run_watchdog()
        rollout = await start(store, timeout_seconds=100)
        clocks.go(90)
        assert await status(store, rollout) == "preparing"
        clocks.go(20)
        assert await status(store, rollout) == "timeout"
