from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from agl_core.errors import (
    AgentTimeoutError,
    AglError,
    RolloutNotFoundError,
    StoreDataError,
    StoreFullError,
    StoreUnavailableError,
)
from agl_core.types import Attempt, AttemptedRollout
from agl_runner import final_status
from agl_runner.final_status import error_metadata, write_final_status
from agl_store_memory import InMemoryLightningStore


class Flaky(InMemoryLightningStore):
    """A store that fails the next updates, or blocks them."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[BaseException] = []
        self.updates = 0
        self.hold: asyncio.Event | None = None
        self.held = asyncio.Event()

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Attempt:
        self.updates += 1
        if self.failures:
            raise self.failures.pop(0)
        if self.hold is not None:
            self.held.set()
            await self.hold.wait()
        return await super().update_attempt(*args, **kwargs)


@pytest.fixture
def store() -> Flaky:
    return Flaky()


async def _attempt(store: Flaky, rollout: AttemptedRollout) -> Attempt:
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    return attempt


async def test_success_and_failure(store: Flaky) -> None:
    good, bad = await store.start_rollout({}), await store.start_rollout({})
    assert await write_final_status(store, good, None, timeout=1) == "succeeded"
    assert await write_final_status(store, bad, KeyError("k"), timeout=1) == "failed"
    assert (await _attempt(store, good)).metadata == good.attempt.metadata
    attempt = await _attempt(store, bad)
    assert attempt.metadata == {"error": "KeyError: 'k'", "error_type": "KeyError"}


def test_a_long_message_is_cut() -> None:
    assert len(error_metadata(ValueError("x" * 10_000))["error"]) == 4000


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad \ud800 text"), r"ValueError: bad \ud800 text"),
        (Unreadable(), "Unreadable: (the message cannot be read: RuntimeError)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
async def test_any_error_fails_the_attempt(store: Flaky, error: BaseException, text: str) -> None:
    rollout = await store.start_rollout({})
    assert await write_final_status(store, rollout, error, timeout=1) == "failed"
    attempt = await _attempt(store, rollout)
    assert json.loads(attempt.model_dump_json())["metadata"]["error"] == text


async def test_the_write_is_retried_until_the_store_is_back(
    store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_status, "FIRST_RETRY", 0.01)
    rollout = await store.start_rollout({})
    store.failures = [StoreUnavailableError("a"), TimeoutError(), StoreUnavailableError("b")]
    assert await write_final_status(store, rollout, None, timeout=10) == "succeeded"
    assert store.updates == 4
    assert (await _attempt(store, rollout)).status == "succeeded"


async def test_the_write_is_retried_until_the_store_has_space(
    store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_status, "FIRST_RETRY", 0.01)
    rollout = await store.start_rollout({})
    store.failures = [StoreFullError("the disk is full")] * 3
    assert await write_final_status(store, rollout, None, timeout=10) == "succeeded"
    assert store.updates == 4
    assert (await _attempt(store, rollout)).status == "succeeded"


@pytest.mark.timing
async def test_it_gives_up_at_the_deadline(store: Flaky) -> None:
    rollout = await store.start_rollout({})
    store.failures = [StoreUnavailableError("down")] * 1000
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=f"{rollout.rollout_id}: down"):
        await write_final_status(store, rollout, None, timeout=0.5)
    assert time.monotonic() - started < 0.5
    assert store.updates == 3  # at 0, 0.1 and 0.3 s


async def test_a_store_that_never_answers(store: Flaky) -> None:
    rollout = await store.start_rollout({})
    store.hold = asyncio.Event()
    with pytest.raises(StoreUnavailableError, match="it does not answer"):
        await write_final_status(store, rollout, None, timeout=0.05)


@pytest.mark.parametrize("error", [RolloutNotFoundError("gone"), StoreDataError("damaged")])
async def test_other_errors_are_not_retried(store: Flaky, error: AglError) -> None:
    rollout = await store.start_rollout({})
    store.failures = [error]
    with pytest.raises(type(error)):
        await write_final_status(store, rollout, ValueError("x"), timeout=1)
    assert store.updates == 1


async def test_a_cancellation_during_the_write_does_not_lose_it(store: Flaky) -> None:
    rollout = await store.start_rollout({})
    store.hold = asyncio.Event()
    writing = asyncio.create_task(write_final_status(store, rollout, None, timeout=60))
    await store.held.wait()
    writing.cancel()
    await asyncio.sleep(0)
    store.hold.set()
    assert await writing == "succeeded"
    assert store.updates == 2
    assert (await _attempt(store, rollout)).status == "succeeded"


async def test_a_cancellation_shortens_the_time(
    store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_status, "CANCELLED_TIMEOUT", 0.05)
    rollout = await store.start_rollout({})
    store.hold = asyncio.Event()
    writing = asyncio.create_task(write_final_status(store, rollout, None, timeout=60))
    await store.held.wait()
    writing.cancel()
    with pytest.raises(StoreUnavailableError):
        await asyncio.wait_for(writing, 5)


async def test_a_cancellation_between_tries(store: Flaky) -> None:
    rollout = await store.start_rollout({})
    store.failures = [StoreUnavailableError("down")]
    writing = asyncio.create_task(write_final_status(store, rollout, None, timeout=60))
    while not store.updates:
        await asyncio.sleep(0)
    writing.cancel()
    assert await writing == "succeeded"


@pytest.mark.parametrize("error", [ValueError("late"), AgentTimeoutError("late")])
async def test_a_timeout_verdict_stands(store: Flaky, error: Exception) -> None:
    rollout = await store.start_rollout({})
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    verdict = await store.update_attempt(*ids, status="timeout")
    assert await write_final_status(store, rollout, error, timeout=1) is None
    attempt = await _attempt(store, rollout)
    assert (attempt.status, attempt.end_time) == ("timeout", verdict.end_time)
    assert attempt.metadata is not None
    assert attempt.metadata["error_type"] == type(error).__name__


async def test_an_unresponsive_status_is_overwritten(store: Flaky) -> None:
    rollout = await store.start_rollout({})
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    await store.update_attempt(*ids, status="unresponsive")
    assert await write_final_status(store, rollout, ValueError("x"), timeout=1) == "failed"


async def test_a_runner_continues_if_the_status_cannot_be_written(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store = store = Flaky()
    runner = await bench.runner(lambda task: None, finish_timeout=0.05)
    for i in range(2):
        await store.enqueue_rollout(i)
    store.failures = [StoreUnavailableError("down")]
    running = asyncio.create_task(runner.iter())
    async with asyncio.timeout(5):
        while (await bench.statuses()).count("succeeded") < 1:
            await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await bench.statuses() == ["preparing", "succeeded"]
    assert "the final status is not written" in caplog.text


async def test_a_step_raises_if_the_status_cannot_be_written(bench: Any) -> None:
    bench.store = store = Flaky()
    runner = await bench.runner(lambda task: None, finish_timeout=0.05)
    store.failures = [StoreUnavailableError("down")]
    with pytest.raises(StoreUnavailableError):
        await runner.step({})
