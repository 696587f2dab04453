"""The event `rollout_ended`: once per end, after the commit, and never in the way of a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import pytest

from agl_core.errors import AglError
from agl_core.plugins import add_listener, flush_listeners, hookimpl, remove_listener
from agl_core.store import LightningStore
from agl_core.types import Rollout
from agl_testing.store.base import StoreTests, claim, statuses
from agl_testing.suite import requires

__all__ = ["EndTests"]


class _Ends:
    """A listener that keeps what it hears; while it is held it processes nothing."""

    def __init__(self) -> None:
        self._heard: list[Rollout] = []
        self.free = threading.Event()
        self.free.set()

    @hookimpl
    def rollout_ended(self, rollout: Rollout) -> None:
        self.free.wait()
        self._heard.append(rollout)

    def heard(self, rollout_id: str) -> list[Rollout]:
        """Return the ends of a rollout that were sent so far."""
        flush_listeners()
        return [rollout for rollout in self._heard if rollout.rollout_id == rollout_id]


@contextmanager
def _listening() -> Iterator[_Ends]:
    ends = _Ends()
    name = add_listener(ends)
    try:
        yield ends
    finally:
        ends.free.set()
        remove_listener(name)


class EndTests(StoreTests):
    """`rollout_ended`."""

    def failing_commits(self, store: LightningStore) -> AbstractAsyncContextManager[None]:
        """Return a context in which no change can be committed, as if the disk were full.

        The change is decided and written, and what fails is its last step.
        """
        raise NotImplementedError(
            f"{type(self).__name__} claims `fails_commits`: override `failing_commits`"
        )

    @requires("ends")
    async def test_an_end_is_sent_once_with_the_whole_rollout(self, store: LightningStore):
        with _listening() as ends:
            claimed = await claim(store, {"question": "6 x 7"})
            await store.update_rollout(claimed.rollout_id, metadata={"split": "test"})
            await store.update_attempt(claimed.rollout_id, "latest", status="running")
            assert ends.heard(claimed.rollout_id) == []
            await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
            (ended,) = ends.heard(claimed.rollout_id)
        assert (ended.status, ended.input) == ("succeeded", {"question": "6 x 7"})
        assert ended.metadata == {"split": "test"}
        assert ended.end_time is not None

    @requires("ends")
    async def test_a_retry_is_no_end(self, store: LightningStore):
        with _listening() as ends:
            first = await claim(store, max_attempts=2, retry_condition=["failed"])
            await store.update_attempt(first.rollout_id, "latest", status="failed")
            assert ends.heard(first.rollout_id) == []
            assert await store.dequeue_rollout() is not None
            await store.update_attempt(first.rollout_id, "latest", status="failed")
            assert [rollout.status for rollout in ends.heard(first.rollout_id)] == ["failed"]

    @requires("ends")
    async def test_a_cancelled_rollout_ends_and_its_attempt_adds_no_end(
        self, store: LightningStore
    ):
        with _listening() as ends:
            claimed = await claim(store)
            await store.update_rollout(claimed.rollout_id, status="cancelled")
            await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
            assert ends.heard(claimed.rollout_id)[0].status == "cancelled"
            assert len(ends.heard(claimed.rollout_id)) == 1

    @requires("ends", "scans")
    async def test_the_watchdog_ends_a_rollout_with_its_input(self, store: LightningStore):
        with _listening() as ends:
            claimed = await claim(store, "slow", timeout_seconds=0.01)
            async with asyncio.timeout(20):
                while not ends.heard(claimed.rollout_id):
                    await asyncio.sleep(0.02)
                    await store.get_rollout_by_id(claimed.rollout_id)
            await store.get_rollout_by_id(claimed.rollout_id)
            assert [rollout.input for rollout in ends.heard(claimed.rollout_id)] == ["slow"]

    @requires("ends")
    async def test_of_many_calls_that_race_to_end_a_rollout_one_is_heard(
        self, store: LightningStore
    ):
        with _listening() as ends:
            for _ in range(10):
                claimed = await claim(store)
                ids = claimed.rollout_id, claimed.attempt.attempt_id
                calls = [store.update_attempt(*ids, status="succeeded") for _ in range(4)]
                calls += [store.update_attempt(*ids, metadata={"at": at}) for at in range(4)]
                await asyncio.gather(*calls)
                assert len(ends.heard(claimed.rollout_id)) == 1

    @requires("ends")
    async def test_what_a_refused_call_would_change_is_not_sent(self, store: LightningStore):
        with _listening() as ends:
            claimed = await claim(store)
            with pytest.raises(AglError):
                await store.update_attempt(claimed.rollout_id, "at-none", status="succeeded")
            assert ends.heard(claimed.rollout_id) == []

    @requires("ends", "fails_commits")
    async def test_what_is_not_committed_is_not_sent(self, store: LightningStore):
        with _listening() as ends:
            claimed = await claim(store)
            async with self.failing_commits(store):
                with pytest.raises(AglError):
                    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
                assert ends.heard(claimed.rollout_id) == []
            assert (await statuses(store, claimed.rollout_id))[0] == "preparing"
            await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
            assert len(ends.heard(claimed.rollout_id)) == 1

    @requires("ends")
    async def test_no_call_waits_for_a_held_listener(self, store: LightningStore):
        with _listening() as ends:
            ends.free.clear()
            claimed = await claim(store)
            await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
            # None of these returns before the listener is free, if a call waits for it.
            enqueued = await store.enqueue_rollout("next")
            assert await store.get_rollout_by_id(enqueued.rollout_id) is not None
            ended = await store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=20)
            assert [rollout.status for rollout in ended] == ["succeeded"]
            ends.free.set()
            assert len(ends.heard(claimed.rollout_id)) == 1
