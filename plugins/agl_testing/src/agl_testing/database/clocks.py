"""Checks of stores that several machines share: the database's clock decides."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from agl_core.store import LightningStore, current_request_key
from agl_core.types import RolloutConfig

__all__ = ["check_clocks"]

_HOUR = 3600.0
"""Seconds: a clock that is wrong by a time zone."""


async def check_clocks(connect: Callable[[], LightningStore]) -> None:
    """Check that machines whose clocks differ by hours agree on times, timeouts and repeated calls.

    Args:
        connect: Returns a new store on the same data, as another machine makes it.
    """
    real = time.time
    shift = 0.0
    right = connect()
    begun = await right.start_rollout("task", config=RolloutConfig(timeout_seconds=60))
    await right.enqueue_rollout("queued")
    claimed = await _claim(right)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + shift)
        for shift in (2 * _HOUR, -2 * _HOUR, 0.0, _HOUR):  # also set while the store is open
            wrong = connect() if shift != 0.0 else right
            await wrong.run_watchdog()
            assert await _claim(right) == claimed, f"a clock that is {shift:g} s ahead forgot it"
            rollout = await wrong.get_rollout_by_id(begun.rollout_id)
            assert rollout is not None
            assert rollout.status == "preparing", f"a clock that is {shift:g} s ahead ended it"
            other = await wrong.enqueue_rollout("another")
            assert abs(other.start_time - real()) < 5
            await right.update_rollout(other.rollout_id, status="cancelled")
            after = await right.get_rollout_by_id(other.rollout_id)
            assert after is not None
            assert after.end_time is not None
            assert -1 < after.end_time - other.start_time < 5
            if wrong is not right:
                await wrong.close()
    await right.close()


async def _claim(store: LightningStore) -> tuple[str, str] | None:
    """Return the ids of what is claimed under one idempotency key, however often."""
    reset = current_request_key.set("a claim whose reply is lost")
    try:
        claimed = await store.dequeue_rollout("worker")
    finally:
        current_request_key.reset(reset)
    return None if claimed is None else (claimed.rollout_id, claimed.attempt.attempt_id)
