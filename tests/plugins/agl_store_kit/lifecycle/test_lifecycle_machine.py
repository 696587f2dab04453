"""Random histories: the pure module, and the memory store on it, against a naive account."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any, cast, get_args

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agl_core.types import (
    AttemptStatus,
    RolloutConfig,
    RolloutStatus,
    Span,
)
from agl_store_memory import InMemoryLightningStore


def at_once(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a call that must not suspend."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the call suspended")


class StoreSubject:
    """The memory store, whose watchdog looks at every call."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.now = 0.0
        self.patch.setattr(time, "time", lambda: self.now)
        self.patch.setattr(time, "monotonic_ns", lambda: int(self.now * 1e9))
        # After its clocks: from the real ones to 0 would be a jump, which the watchdog follows.
        self.store = InMemoryLightningStore(scan_debounce_seconds=0)

    def enqueue(self, config: RolloutConfig) -> str:
        return at_once(self.store.enqueue_rollout("task", config=config)).rollout_id

    def start(self, config: RolloutConfig, who: str | None) -> tuple[str, str]:
        made = at_once(self.store.start_rollout("task", config=config, worker_id=who))
        return made.rollout_id, made.attempt.attempt_id

    def begin(self, rollout_id: str, who: str | None) -> str:
        return at_once(self.store.start_attempt(rollout_id, who)).attempt.attempt_id

    def dequeue(self, who: str | None) -> tuple[str, str] | None:
        found = at_once(self.store.dequeue_rollout(who))
        return None if found is None else (found.rollout_id, found.attempt.attempt_id)

    def span(self, rollout_id: str, attempt_id: str) -> None:
        span = Span.from_attributes(attributes={}, rollout_id=rollout_id, attempt_id=attempt_id)
        assert at_once(self.store.add_span(span)) is span

    def write_attempt(self, rollout_id: str, attempt_id: str, changes: dict[str, Any]) -> None:
        at_once(self.store.update_attempt(rollout_id, attempt_id, **changes))

    def write_rollout(self, rollout_id: str, changes: dict[str, Any]) -> None:
        at_once(self.store.update_rollout(rollout_id, **changes))

    def heartbeat(self, who: str) -> None:
        at_once(self.store.update_worker(who))

    def watchdog(self) -> None:
        at_once(self.store.run_watchdog())

    def close(self) -> None:
        self.patch.undo()

    def seen(self) -> tuple[Any, Any, Any, Any]:
        backend = self.store._backend
        entries = list(backend._entries.values())
        attempts = [item for entry in entries for item in entry.attempts.values()]
        for entry in entries:
            assert entry.latest == (list(entry.attempts.values()) or [None])[-1]
        rollouts = [entry.rollout for entry in entries]
        return rollouts, attempts, list(backend._workers.values()), list(backend._queue)


# -- histories -------------------------------------------------------------------------------------

configs = st.fixed_dictionaries(
    {
        "max": st.integers(1, 3),
        "retry": st.sampled_from(
            [["failed", "timeout", "unresponsive"], ["timeout", "unresponsive"], ["failed"], []]
        ),
        "timeout": st.sampled_from([None, None, 6.0]),
        "silence": st.sampled_from([None, 3.0]),
    }
)
workers = st.sampled_from(["w1", "w2"])
attempt_changes = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(get_args(AttemptStatus)),
        "worker_id": st.sampled_from(["w1", "w2", ""]),
        "metadata": st.sampled_from([None, {"a": 1}]),
        "last_heartbeat_time": st.sampled_from([0.0, 2.0]),
    },
)
rollout_changes = st.fixed_dictionaries(
    {},
    optional={"status": st.sampled_from(get_args(RolloutStatus)), "input": st.integers(0, 2)},
)


def config_of(fields: dict[str, Any]) -> RolloutConfig:
    return RolloutConfig(
        max_attempts=fields["max"],
        retry_condition=fields["retry"],
        timeout_seconds=fields["timeout"],
        unresponsive_seconds=fields["silence"],
    )


class Histories(RuleBasedStateMachine):
    rollouts = Bundle("rollouts")
    attempts = Bundle("attempts")

    def __init__(self, naive: Any, subject: Any) -> None:
        super().__init__()
        self.naive = naive
        self.subject = subject

    def teardown(self) -> None:
        self.subject.close()

    def look(self) -> None:
        """The watchdog looks before every call that may show its verdicts."""
        self.subject.watchdog()
        self.naive.watchdog()

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.naive.now += seconds
        self.subject.now += seconds

    # Few rollouts, so that histories of one go deep.
    @precondition(lambda self: len(self.naive.rollouts) < 3)
    @rule(target=rollouts, fields=configs)
    def enqueue(self, fields: dict[str, Any]) -> str:
        self.look()
        rollout_id = self.subject.enqueue(config_of(fields))
        self.naive.enqueue(rollout_id, fields)
        return rollout_id

    @precondition(lambda self: len(self.naive.rollouts) < 3)
    @rule(target=attempts, fields=configs, who=st.none() | workers)
    def start(self, fields: dict[str, Any], who: str | None) -> tuple[str, str]:
        self.look()
        rollout_id, attempt_id = self.subject.start(config_of(fields), who)
        self.naive.create(rollout_id, fields)
        self.naive.begin(rollout_id, attempt_id, who, dequeued=False)
        return rollout_id, attempt_id

    @rule(target=attempts, who=st.none() | workers)
    def dequeue(self, who: str | None) -> Any:
        self.look()
        expected = self.naive.queue[0] if self.naive.queue else None
        claimed = self.subject.dequeue(who)
        if claimed is None:
            assert expected is None
            if who:
                self.naive.found_nothing(who)
            return multiple()
        assert claimed[0] == expected
        self.naive.begin(*claimed, who, dequeued=True)
        return claimed

    @rule(target=attempts, rollout_id=rollouts, who=st.none() | workers)
    def start_attempt(self, rollout_id: str, who: str | None) -> tuple[str, str]:
        self.look()
        attempt_id = self.subject.begin(rollout_id, who)
        self.naive.begin(rollout_id, attempt_id, who, dequeued=False)
        return rollout_id, attempt_id

    @rule(ids=attempts)
    def span(self, ids: tuple[str, str]) -> None:
        self.subject.span(*ids)
        self.naive.span(*ids)

    @rule(ids=attempts, changes=attempt_changes)
    def write_attempt(self, ids: tuple[str, str], changes: dict[str, Any]) -> None:
        self.look()
        self.subject.write_attempt(*ids, changes)
        self.naive.write_attempt(*ids, changes)

    @rule(rollout_id=rollouts, changes=rollout_changes)
    def write_rollout(self, rollout_id: str, changes: dict[str, Any]) -> None:
        self.look()
        self.subject.write_rollout(rollout_id, changes)
        self.naive.write_rollout(rollout_id, changes)

    @rule(ids=attempts, changes=rollout_changes)
    def write_started_rollout(self, ids: tuple[str, str], changes: dict[str, Any]) -> None:
        self.write_rollout(ids[0], changes)

    @rule(who=workers)
    def heartbeat(self, who: str) -> None:
        self.subject.heartbeat(who)
        self.naive.heartbeat(who)

    @invariant()
    def agree(self) -> None:
        rollouts, attempts, workers, queue = self.subject.seen()
        assert queue == self.naive.queue
        assert {item.rollout_id: (item.status, item.end_time, item.input) for item in rollouts} == {
            key: (item["status"], item["end"], item["input"])
            for key, item in self.naive.rollouts.items()
        }
        fields = ("status", "number", "start", "end", "beat", "worker", "metadata")
        assert {
            (item.rollout_id, item.attempt_id): (
                *(item.status, item.sequence_id, item.start_time, item.end_time),
                *(item.last_heartbeat_time, item.worker_id, item.metadata),
            )
            for item in attempts
        } == {
            key: tuple(item[field] for field in fields) for key, item in self.naive.attempts.items()
        }
        fields = ("status", "busy", "idle", "dequeue", "beat")
        assert {
            item.worker_id: (
                *(item.status, item.last_busy_time, item.last_idle_time),
                *(item.last_dequeue_time, item.last_heartbeat_time),
                (item.current_rollout_id, item.current_attempt_id),
            )
            for item in workers
        } == {
            key: (*(item[field] for field in fields), item["job"] or (None, None))
            for key, item in self.naive.workers.items()
        }

    @invariant()
    def hold_always(self) -> None:
        rollouts, _, workers, queue = self.subject.seen()
        for item in rollouts:
            assert (item.rollout_id in queue) == (item.status in ("queuing", "requeuing"))
            assert (item.end_time is not None) == (
                item.status in ("failed", "succeeded", "cancelled")
            )
        for item in workers:
            assert (item.current_attempt_id is not None) == (item.status == "busy")


@pytest.mark.parametrize("subject_name", ["pure", "store"])
def test_random_histories_agree_with_the_naive_account(
    subject_name: str, pure_subject: Any, naive_lifecycle: Any
):
    subject = pure_subject if subject_name == "pure" else StoreSubject

    def history() -> Histories:
        return Histories(naive_lifecycle(), subject())

    run_state_machine_as_test(
        cast("Any", history),
        settings=settings(
            max_examples=300,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
