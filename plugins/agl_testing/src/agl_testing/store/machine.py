"""Random histories: after each step the store must agree with the pure lifecycle.

The model is a few dictionaries that :mod:`agl_store_kit.lifecycle` changes; it has no indexes, no
locks and no I/O. Hypothesis generates histories. After each step statuses, end times, attempts and
spans of the rollouts that it changed and all workers must agree; at the end those of all rollouts,
their number per status and the whole queue. The model uses the store's ids.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, get_args

from hypothesis import HealthCheck, example, given, settings, strategies as st

from agl_core.status import INFRASTRUCTURE, INFRASTRUCTURE_FAILURES
from agl_core.store import LightningStore
from agl_core.types import Attempt, AttemptedRollout, Rollout, RolloutConfig, RolloutStatus, Worker
from agl_store_kit import lifecycle
from agl_testing.samples import named_resources, span_of
from agl_testing.store.base import StoreTests
from agl_testing.suite import requires

__all__ = ["MachineTests"]

CONFIGS = [
    RolloutConfig(),
    RolloutConfig(max_attempts=2, retry_condition=["failed"]),
    RolloutConfig(max_attempts=3, retry_condition=["failed", "timeout", "unresponsive"]),
]
ATTEMPT_STATUSES = ["preparing", "running", "succeeded", "failed", "timeout", "unresponsive"]
ROLLOUT_STATUSES = [
    *("queuing", "preparing", "running", "succeeded", "failed", "cancelled", "requeuing"),
]

_examples = itertools.count()
_pick = st.integers(min_value=0, max_value=7)
_worker = st.sampled_from([None, "a", "b"])
_one_step = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from(CONFIGS)),
    st.tuples(st.just("start"), st.sampled_from(CONFIGS), _worker),
    st.tuples(st.just("dequeue"), _worker),
    st.tuples(st.just("start_attempt"), _pick, _worker),
    st.tuples(st.just("span"), _pick, _pick, st.sampled_from([None, 1, 2])),
    st.tuples(st.just("resources"), st.sampled_from([None, "a", "b"])),
    st.tuples(st.just("attempt"), _pick, _pick, st.sampled_from(ATTEMPT_STATUSES)),
    st.tuples(st.just("infrastructure"), _pick, _pick, st.sampled_from([1, 2, 3])),
    st.tuples(st.just("note"), _pick, _pick),
    st.tuples(st.just("rollout"), _pick, st.sampled_from(ROLLOUT_STATUSES)),
    st.tuples(st.just("heartbeat"), st.sampled_from(["a", "b"])),
)
_steps = st.lists(_one_step, max_size=25)
_steps_with_restarts = st.lists(st.one_of(_one_step, _one_step, st.just(("reopen",))), max_size=25)


_A_FULL_STORE: list[tuple[Any, ...]] = [
    *[("enqueue", CONFIGS[0])] * 6,
    *[("resources", name) for name in ("a", "b", "a", "b")],
    *[("start", CONFIGS[1], name) for name in ("a", "b")],
    *[("span", pick, 0, 1) for pick in (6, 7, 7)],
    ("dequeue", "a"),
    ("attempt", 0, 0, "failed"),
    ("reopen",),
    ("enqueue", CONFIGS[0]),
    ("reopen",),
]
"""A history in which everything that a store must keep matters after a restart."""


class Model:
    """The lifecycle applied to dictionaries."""

    def __init__(self) -> None:
        self.rollouts: dict[str, Rollout] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.workers: dict[str, Worker] = {}
        self.queue: list[str] = []
        self.spans: dict[str, list[tuple[str, str]]] = {}
        """Attempt id and span id of each span, by rollout."""
        self.versions: dict[str, int] = {}
        """Versions of the snapshots."""
        self.changed: set[str] = set()
        """Rollouts that changed since the last comparison."""

    def apply(self, rollout_id: str, change: lifecycle.Change) -> None:
        self.changed.add(rollout_id)
        if change.rollout:
            self.rollouts[rollout_id] = change.rollout
        if change.attempt:
            attempts = self.attempts[rollout_id]
            ids = [attempt.attempt_id for attempt in attempts]
            if change.attempt.attempt_id in ids:
                attempts[ids.index(change.attempt.attempt_id)] = change.attempt
            else:
                attempts.append(change.attempt)
        if change.worker:
            self.workers[change.worker.worker_id] = change.worker
        if change.queue == "append":
            self.queue.append(rollout_id)
        elif change.queue == "remove":
            self.queue.remove(rollout_id)

    def created(self, rollout: Rollout) -> None:
        self.changed.add(rollout.rollout_id)
        self.rollouts[rollout.rollout_id] = Rollout(
            **rollout.model_dump(exclude={"attempt", "status"}), status="queuing"
        )
        self.attempts[rollout.rollout_id] = []
        self.spans[rollout.rollout_id] = []
        self.queue.append(rollout.rollout_id)

    def begun(self, claimed: AttemptedRollout, worker: str | None, *, dequeued: bool) -> None:
        rollout_id = claimed.rollout_id
        change = lifecycle.begin_attempt(
            self.rollouts[rollout_id],
            attempt_id=claimed.attempt.attempt_id,
            sequence_id=len(self.attempts[rollout_id]) + 1,
            now=time.time(),
            worker_id=worker,
            worker=self.workers.get(worker or ""),
            dequeued=dequeued,
        )
        self.apply(rollout_id, change)
        for earlier in self.attempts[rollout_id][-2:-1]:
            known = self.worker_of(earlier)
            if released := lifecycle.released_from(earlier, known, now=time.time()):
                self.workers[released.worker_id] = released

    def worker_of(self, attempt: Attempt | None) -> Worker | None:
        return self.workers.get(attempt.worker_id) if attempt and attempt.worker_id else None


class History:
    """One history, applied to the store and to the model in parallel."""

    def __init__(
        self, store: LightningStore, reopen: Callable[[], Awaitable[LightningStore]] | None = None
    ) -> None:
        self.store = store
        self.model = Model()
        self.prefix = f"machine-{next(_examples)}-{time.time_ns()}-"
        self.latest_resources: str | None = None
        self.reopen = reopen

    async def begin(self) -> None:
        """Read what earlier histories have left in the same store."""
        latest = await self.store.get_latest_resources()
        self.latest_resources = latest and latest.resources_id

    def worker(self, name: str | None) -> str | None:
        return None if name is None else self.prefix + name

    def rollout(self, pick: int) -> str | None:
        ids = list(self.model.rollouts)
        return ids[pick % len(ids)] if ids else None

    def attempt(self, rollout_id: str, pick: int) -> Attempt | None:
        attempts = self.model.attempts[rollout_id]
        return attempts[pick % len(attempts)] if attempts else None

    async def step(self, name: str, *arguments: Any) -> None:
        await getattr(self, "do_" + name)(*arguments)
        await self.compare(self.model.changed)
        self.model.changed.clear()

    async def do_enqueue(self, config: RolloutConfig) -> None:
        rollout = await self.store.enqueue_rollout("x", config=config)
        assert rollout.resources_id == self.latest_resources
        self.model.created(rollout)

    async def do_start(self, config: RolloutConfig, name: str | None) -> None:
        worker = self.worker(name)
        started = await self.store.start_rollout("x", config=config, worker_id=worker)
        assert started.resources_id == self.latest_resources
        self.model.created(started)
        self.model.begun(started, worker, dequeued=False)

    async def do_dequeue(self, name: str | None) -> None:
        worker = self.worker(name)
        claimed = await self.store.dequeue_rollout(worker)
        if self.model.queue:
            assert claimed is not None
            assert claimed.rollout_id == self.model.queue[0]
            self.model.begun(claimed, worker, dequeued=True)
        else:
            assert claimed is None
            if worker:
                self.model.workers[worker] = lifecycle.nothing_to_claim(
                    worker, self.model.workers.get(worker), now=time.time()
                )

    async def do_start_attempt(self, pick: int, name: str | None) -> None:
        if rollout_id := self.rollout(pick):
            worker = self.worker(name)
            started = await self.store.start_attempt(rollout_id, worker_id=worker)
            self.model.begun(started, worker, dequeued=False)

    async def do_resources(self, name: str | None) -> None:
        if name is None:
            update = await self.store.add_resources(named_resources(self.prefix))
        else:
            update = await self.store.update_resources(self.prefix + name, named_resources(name))
        versions = self.model.versions
        versions[update.resources_id] = versions.get(update.resources_id, 0) + 1
        self.latest_resources = update.resources_id

    async def do_reopen(self) -> None:
        """Close the store and open its data again."""
        assert self.reopen is not None
        await self.store.close()
        self.store = await self.reopen()
        self.model.changed.update(self.model.rollouts)

    async def do_span(self, pick: int, which: int, number: int | None) -> None:
        rollout_id = self.rollout(pick)
        attempt = rollout_id and self.attempt(rollout_id, which)
        if not rollout_id or not attempt:
            return
        rollout = self.model.rollouts[rollout_id]
        attempted = AttemptedRollout(**rollout.model_dump(), attempt=attempt)
        # The same few ids appear in all rollouts and attempts.
        span = span_of(attempted, span_id=None if number is None else f"{number:016x}")
        stored = await self.store.add_span(span)
        key = (attempt.attempt_id, span.span_id)
        if key in self.model.spans[rollout_id]:
            assert stored is None
            return
        assert stored == span
        self.model.spans[rollout_id].append(key)
        change = lifecycle.span_arrived(
            rollout,
            attempt,
            is_latest=attempt is self.model.attempts[rollout_id][-1],
            worker=self.model.worker_of(attempt),
            now=time.time(),
        )
        self.model.apply(rollout_id, change)

    async def do_attempt(self, pick: int, which: int, status: Any) -> None:
        await self._update_attempt(pick, which, {"status": status})

    async def do_infrastructure(self, pick: int, which: int, failures: int) -> None:
        """Fail an attempt as a proxy does: the rollout is tried again, whatever its config says."""
        metadata = {INFRASTRUCTURE: "proxy", INFRASTRUCTURE_FAILURES: failures}
        await self._update_attempt(pick, which, {"status": "failed", "metadata": metadata})

    async def do_note(self, pick: int, which: int) -> None:
        await self._update_attempt(pick, which, {"metadata": {"note": 1}})

    async def _update_attempt(self, pick: int, which: int, changes: dict[str, Any]) -> None:
        rollout_id = self.rollout(pick)
        attempt = rollout_id and self.attempt(rollout_id, which)
        if not rollout_id or not attempt:
            return
        await self.store.update_attempt(rollout_id, attempt.attempt_id, **changes)
        change = lifecycle.update_attempt(
            self.model.rollouts[rollout_id],
            attempt,
            changes,
            is_latest=attempt is self.model.attempts[rollout_id][-1],
            worker=self.model.worker_of(attempt),
            now=time.time(),
        )
        self.model.apply(rollout_id, change)

    async def do_rollout(self, pick: int, status: Any) -> None:
        if rollout_id := self.rollout(pick):
            await self.store.update_rollout(rollout_id, status=status)
            attempts = self.model.attempts[rollout_id]
            latest = attempts[-1] if attempts else None
            change = lifecycle.update_rollout(
                self.model.rollouts[rollout_id],
                {"status": status},
                attempt=latest,
                worker=self.model.worker_of(latest),
                now=time.time(),
            )
            self.model.apply(rollout_id, change)

    async def do_heartbeat(self, name: str) -> None:
        worker = self.worker(name) or ""
        await self.store.update_worker(worker)
        self.model.workers[worker] = lifecycle.worker_heartbeat(
            worker, self.model.workers.get(worker), {}, now=time.time()
        )

    # -- comparing -------------------------------------------------------------------------------

    async def compare(self, rollout_ids: Iterable[str]) -> None:
        """Compare these rollouts, and the resources and workers, with the model's."""
        for rollout_id in rollout_ids:
            expected = self.model.rollouts[rollout_id]
            rollout = await self.store.get_rollout_by_id(rollout_id)
            assert rollout is not None
            assert rollout.status == expected.status
            assert (rollout.end_time is None) == (expected.end_time is None)
            attempts = await self.store.query_attempts(rollout_id)
            assert [_shape(a) for a in attempts] == [
                _shape(a) for a in self.model.attempts[rollout_id]
            ]
            spans = await self.store.query_spans(rollout_id, sort_by=None)
            assert [(s.attempt_id, s.span_id) for s in spans] == self.model.spans[rollout_id]
        latest = await self.store.get_latest_resources()
        assert (latest and latest.resources_id) == self.latest_resources
        for resources_id, version in self.model.versions.items():
            snapshot = await self.store.get_resources_by_id(resources_id)
            assert snapshot is not None
            assert snapshot.version == version
        for worker_id, expected in self.model.workers.items():
            worker = await self.store.get_worker_by_id(worker_id)
            assert worker is not None
            assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == (
                expected.status,
                expected.current_rollout_id,
                expected.current_attempt_id,
            )

    async def totals(self) -> Counter[str]:
        """Return the store's count of rollouts by status."""
        pages = {
            status: await self.store.query_rollouts(status_in=[status], limit=0)
            for status in get_args(RolloutStatus)
        }
        return Counter({status: page.total for status, page in pages.items()})

    async def drain(self) -> None:
        """Empty the queue, which must hold the same rollouts as the model's queue, in order."""
        claimed = await self.store.dequeue_many_rollouts(limit=1000)
        assert [rollout.rollout_id for rollout in claimed] == self.model.queue
        for rollout in claimed:
            await self.store.update_rollout(rollout.rollout_id, status="cancelled")


def _shape(attempt: Attempt) -> tuple[Any, ...]:
    return (
        attempt.attempt_id,
        attempt.sequence_id,
        attempt.status,
        attempt.worker_id,
        attempt.end_time is None,
        attempt.last_heartbeat_time is None,
        attempt.metadata,
    )


_settings = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        # Every suite of a project inherits these tests, each with its own store.
        HealthCheck.differing_executors,
    ],
)


async def run_history(history: History, steps: list[tuple[Any, ...]]) -> None:
    await history.begin()
    before = await history.totals()
    try:
        for step in steps:
            await history.step(*step)
        await history.compare(history.model.rollouts)
        statuses = Counter(rollout.status for rollout in history.model.rollouts.values())
        assert await history.totals() == before + statuses
        await history.drain()
    except BaseException:
        # The next history has the same store, and must not fail for what this one left queued.
        with suppress(Exception):
            await history.store.dequeue_many_rollouts(limit=1000)
        raise


class MachineTests(StoreTests):
    """Compares the store with the lifecycle."""

    @settings(_settings, max_examples=60)
    @given(steps=_steps)
    async def test_random_histories_follow_the_lifecycle(
        self, store: LightningStore, steps: list[tuple[Any, ...]]
    ):
        await run_history(History(store), steps)

    @requires("durable")
    @settings(_settings, max_examples=25)
    @example(steps=_A_FULL_STORE)
    @given(steps=_steps_with_restarts)
    async def test_random_histories_survive_restarts(
        self, store: LightningStore, steps: list[tuple[Any, ...]]
    ):
        async def reopen() -> LightningStore:
            return await self.reopen(store)

        history = History(await reopen(), reopen)
        try:
            await run_history(history, [*steps, ("reopen",)])
        finally:
            await history.store.close()
