"""Base of the parts of the store suite: the fixture, the flags, and helpers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout, RolloutConfig
from agl_testing.suite import Suite

__all__ = ["StoreTests", "claim", "statuses"]


class StoreTests(Suite):
    """Base of the store suite's parts.

    The author supplies a fixture ``store``: an empty store whose watchdog may scan at any moment
    (``scan_debounce_seconds=0`` or the like). It may be an ordinary or an async fixture.
    """

    suite_name = "store"
    FLAGS: ClassVar[dict[str, str]] = {
        "thread_safe": "may be used by several threads, each with an event loop of its own",
        "durable": "a store opened by `reopen` has everything that a returned call wrote",
        "processes": "`connection` returns a picklable callable that opens the same data elsewhere",
        "events": "`events()` tells every change",
        "ends": "its changes happen in the process of the test, which sends `rollout_ended`",
        "fails_commits": "`failing_commits` returns a context in which no change is committed",
        "scans": "reading ends attempts that are past their time, if the watchdog may scan",
        "evicts": "the fixture `small_store` drops old spans when it holds too many bytes",
    }

    @pytest.fixture
    def store(self) -> LightningStore:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `store`")

    @pytest.fixture
    def small_store(self) -> LightningStore:
        raise NotImplementedError(
            f"{type(self).__name__} claims `evicts` and must supply a fixture `small_store`: "
            "a store that holds at least 20 and at most 40 spans of 1,000 bytes"
        )

    async def reopen(self, store: LightningStore) -> LightningStore:
        """Return a new store over the data of ``store``, which may or may not be closed."""
        raise NotImplementedError(f"{type(self).__name__} claims `durable`: override `reopen`")

    def connection(self, store: LightningStore) -> Callable[[], LightningStore]:
        """Return a picklable callable that opens the same data in another process."""
        raise NotImplementedError(
            f"{type(self).__name__} claims `processes`: override `connection`"
        )


async def claim(
    store: LightningStore, input: Any = "task", *, worker_id: str | None = None, **config: Any
) -> AttemptedRollout:
    """Enqueue a task and claim it."""
    await store.enqueue_rollout(input, config=RolloutConfig(**config))
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None, "an enqueued rollout could not be claimed"
    return claimed


async def statuses(store: LightningStore, rollout_id: str) -> tuple[str, list[str]]:
    """Return the status of a rollout and those of its attempts."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None
    attempts = await store.query_attempts(rollout_id)
    return rollout.status, [attempt.status for attempt in attempts]


async def on_attempt(store: LightningStore, worker_id: str) -> str | None:
    """Return the id of the attempt that a worker's record names."""
    worker = await store.get_worker_by_id(worker_id)
    assert worker is not None
    return worker.current_attempt_id
