"""For the state machine test: a second account of the lifecycle, and the pure functions applied.

The account is written from the specification and not from the code: one mutable dict per record,
and tables.
"""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.types import Attempt, Rollout, RolloutConfig, Worker
from agl_store_kit import lifecycle
from agl_store_kit.lifecycle import Change

QUEUED = ("queuing", "requeuing")
FINISHED = ("failed", "succeeded", "cancelled")
# What the latest attempt's status means for its rollout, without a retry.
FOLLOWS = {
    "preparing": "preparing",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "timeout": "failed",
    "unresponsive": "failed",
}
# What an attempt's status means for its worker.
WORKER_AFTER = {
    "preparing": "busy",
    "running": "busy",
    "succeeded": "idle",
    "failed": "idle",
    "timeout": "unknown",
    "unresponsive": "unknown",
}


class NaiveLifecycle:
    def __init__(self) -> None:
        self.rollouts: dict[str, dict[str, Any]] = {}
        self.attempts: dict[tuple[str, str], dict[str, Any]] = {}
        self.workers: dict[str, dict[str, Any]] = {}
        self.queue: list[str] = []
        self.active: list[str] = []
        self.now = 0.0

    # -- what callers do -------------------------------------------------------------------------

    def create(self, rollout_id: str, config: dict[str, Any]) -> None:
        self.rollouts[rollout_id] = {
            "status": None,
            "end": None,
            "input": "task",
            "attempts": [],
            **config,
        }

    def enqueue(self, rollout_id: str, config: dict[str, Any]) -> None:
        self.create(rollout_id, config)
        self.move(rollout_id, "queuing")

    def begin(self, rollout_id: str, attempt_id: str, who: str | None, dequeued: bool) -> None:
        rollout = self.rollouts[rollout_id]
        for latest in rollout["attempts"][-1:]:
            if self.attempts[rollout_id, latest]["worker"] != who:
                self.take_from(rollout_id, latest)
        rollout["attempts"].append(attempt_id)
        self.attempts[rollout_id, attempt_id] = {
            "status": "preparing",
            "number": len(rollout["attempts"]),
            "start": self.now,
            "end": None,
            "beat": None,
            "worker": who,
            "metadata": None,
        }
        self.move(rollout_id, "preparing")
        if who:
            self.hire(who, rollout_id, attempt_id)
            if dequeued:
                self.workers[who]["dequeue"] = self.now

    def found_nothing(self, who: str) -> None:
        if self.worker(who)["status"] != "idle":
            self.dismiss(who, "idle")
        self.workers[who]["dequeue"] = self.now

    def span(self, rollout_id: str, attempt_id: str) -> None:
        attempt = self.attempts[rollout_id, attempt_id]
        attempt["beat"] = self.now
        was = attempt["status"]
        if was in ("preparing", "unresponsive"):
            attempt["status"] = "running"
            attempt["end"] = None
        if attempt["status"] != "running":
            return
        rollout = self.rollouts[rollout_id]
        if rollout["attempts"][-1] == attempt_id:
            pulled = {"preparing"} | ({"requeuing"} if was == "unresponsive" else set())
            if rollout["status"] in pulled:
                self.move(rollout_id, "running")
        if rollout["status"] in QUEUED:
            return
        who = self.workers.get(attempt["worker"] or "")
        if was == "unresponsive" and who and who["status"] == "unknown" and who["job"] is None:
            self.hire(attempt["worker"], rollout_id, attempt_id)

    def write_attempt(self, rollout_id: str, attempt_id: str, changes: dict[str, Any]) -> None:
        attempt = self.attempts[rollout_id, attempt_id]
        rollout = self.rollouts[rollout_id]
        cancelled = rollout["status"] == "cancelled"
        if "worker_id" in changes and changes["worker_id"] != attempt["worker"]:
            self.take_from(rollout_id, attempt_id)
            attempt["worker"] = changes["worker_id"]
        if "metadata" in changes:
            attempt["metadata"] = changes["metadata"]
        if "last_heartbeat_time" in changes:
            attempt["beat"] = changes["last_heartbeat_time"]
        status = changes.get("status")
        if status:
            if status in ("preparing", "running"):
                attempt["end"] = None
            elif status != attempt["status"]:
                attempt["end"] = self.now
            attempt["status"] = status
            if rollout["attempts"][-1] == attempt_id and not cancelled:
                target = FOLLOWS[status]
                again = status in rollout["retry"] and attempt["number"] < rollout["max"]
                if again and rollout["status"] not in FINISHED:
                    target = "requeuing" if target == "failed" else target
                if target != rollout["status"]:
                    self.move(rollout_id, target)

        who = attempt["worker"]
        if not who:
            return
        job = self.workers[who]["job"] if who in self.workers else None
        mine = job == (rollout_id, attempt_id)
        taken = "worker_id" in changes and job is None and not cancelled
        then = WORKER_AFTER[attempt["status"]]
        if rollout["status"] in QUEUED and then == "busy":
            taken = False
        if not (mine or taken) or not (status or "worker_id" in changes):
            return
        if then == "busy":
            self.hire(who, rollout_id, attempt_id)
        elif status:
            self.dismiss(who, then)

    def write_rollout(self, rollout_id: str, changes: dict[str, Any]) -> None:
        rollout = self.rollouts[rollout_id]
        if "input" in changes:
            rollout["input"] = changes["input"]
        status = changes.get("status")
        if status:
            self.move(rollout_id, status)
        if status in ("cancelled", *QUEUED) and rollout["attempts"]:
            self.take_from(rollout_id, rollout["attempts"][-1])

    def heartbeat(self, who: str) -> None:
        self.worker(who)["beat"] = self.now

    def watchdog(self) -> None:
        for rollout_id in list(self.active):
            rollout = self.rollouts[rollout_id]
            if not rollout["attempts"]:
                continue
            attempt_id = rollout["attempts"][-1]
            attempt = self.attempts[rollout_id, attempt_id]
            if attempt["status"] not in ("preparing", "running"):
                continue
            last = attempt["start"] if attempt["beat"] is None else attempt["beat"]
            if rollout["timeout"] and self.now > attempt["start"] + rollout["timeout"]:
                self.write_attempt(rollout_id, attempt_id, {"status": "timeout"})
            elif rollout["silence"] and self.now > last + rollout["silence"]:
                self.write_attempt(rollout_id, attempt_id, {"status": "unresponsive"})

    # -- what follows ----------------------------------------------------------------------------

    def move(self, rollout_id: str, status: str) -> None:
        rollout = self.rollouts[rollout_id]
        rollout["status"] = status
        rollout["end"] = self.now if status in FINISHED else None
        if status not in QUEUED:
            self.queue = [waiting for waiting in self.queue if waiting != rollout_id]
        elif rollout_id not in self.queue:
            self.queue.append(rollout_id)
        if status not in ("preparing", "running"):
            self.active = [other for other in self.active if other != rollout_id]
        elif rollout_id not in self.active:
            self.active.append(rollout_id)

    def worker(self, who: str) -> dict[str, Any]:
        new = {"status": "unknown", "job": None}
        times = dict.fromkeys(("busy", "idle", "dequeue", "beat"))
        return self.workers.setdefault(who, {**new, **times})

    def hire(self, who: str, rollout_id: str, attempt_id: str) -> None:
        job = (rollout_id, attempt_id)
        self.worker(who).update(status="busy", busy=self.now, job=job)

    def take_from(self, rollout_id: str, attempt_id: str) -> None:
        who = self.attempts[rollout_id, attempt_id]["worker"]
        if who in self.workers and self.workers[who]["job"] == (rollout_id, attempt_id):
            self.dismiss(who, "unknown")

    def dismiss(self, who: str, status: str) -> None:
        self.worker(who).update(status=status, idle=self.now, job=None)


# -- what is tested: the pure functions with the least that can carry them out ---------------------


class PureSubject:
    """Applies what the lifecycle says to dicts."""

    def __init__(self) -> None:
        self.rollouts: dict[str, Rollout] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.workers: dict[str, Worker] = {}
        self.queue: list[str] = []
        self.active: dict[str, None] = {}
        self.now = 0.0

    def apply(self, rollout_id: str, change: Change) -> None:
        if change.attempt is not None:
            attempts = self.attempts[rollout_id]
            ids = [attempt.attempt_id for attempt in attempts]
            if change.attempt.attempt_id in ids:
                attempts[ids.index(change.attempt.attempt_id)] = change.attempt
            else:
                attempts.append(change.attempt)
        if change.rollout is not None:
            self.rollouts[rollout_id] = change.rollout
            if change.rollout.status in ("preparing", "running"):
                self.active[rollout_id] = None
            else:
                self.active.pop(rollout_id, None)
        if change.worker is not None:
            self.workers[change.worker.worker_id] = change.worker
        if change.queue == "append":
            assert rollout_id not in self.queue
            self.queue.append(rollout_id)
        elif change.queue == "remove" and rollout_id in self.queue:  # start: it never was in it
            self.queue.remove(rollout_id)

    def create(self, config: RolloutConfig) -> str:
        rollout_id = f"ro-{len(self.rollouts)}"
        self.rollouts[rollout_id] = lifecycle.new_rollout(
            rollout_id=rollout_id,
            input="task",
            mode=None,
            resources_id=None,
            config=config,
            metadata={},
            now=self.now,
        )
        self.attempts[rollout_id] = []
        return rollout_id

    def enqueue(self, config: RolloutConfig) -> str:
        rollout_id = self.create(config)
        self.queue.append(rollout_id)
        return rollout_id

    def start(self, config: RolloutConfig, who: str | None) -> tuple[str, str]:
        rollout_id = self.create(config)
        return rollout_id, self.begin(rollout_id, who)

    def begin(self, rollout_id: str, who: str | None, dequeued: bool = False) -> str:
        number = len(self.attempts[rollout_id]) + 1
        change = lifecycle.begin_attempt(
            self.rollouts[rollout_id],
            attempt_id=f"at-{number}",
            sequence_id=number,
            now=self.now,
            worker_id=who,
            worker=self.workers.get(who or ""),
            dequeued=dequeued,
        )
        self.apply(rollout_id, change)
        if number > 1:
            self.release_from(self.attempts[rollout_id][-2])
        return f"at-{number}"

    def release_from(self, attempt: Attempt) -> None:
        known = self.workers.get(attempt.worker_id or "")
        released = lifecycle.released_from(attempt, known, now=self.now)
        if released is not None:
            self.workers[released.worker_id] = released

    def dequeue(self, who: str | None) -> tuple[str, str] | None:
        if self.queue:
            rollout_id = self.queue[0]
            return rollout_id, self.begin(rollout_id, who, dequeued=True)
        if who:
            known = self.workers.get(who)
            self.workers[who] = lifecycle.nothing_to_claim(who, known, now=self.now)
        return None

    def find(self, rollout_id: str, attempt_id: str) -> tuple[Attempt, bool]:
        attempts = self.attempts[rollout_id]
        at = next(i for i, item in enumerate(attempts) if item.attempt_id == attempt_id)
        return attempts[at], at == len(attempts) - 1

    def span(self, rollout_id: str, attempt_id: str) -> None:
        attempt, is_latest = self.find(rollout_id, attempt_id)
        change = lifecycle.span_arrived(
            self.rollouts[rollout_id],
            attempt,
            is_latest=is_latest,
            worker=self.workers.get(attempt.worker_id or ""),
            now=self.now,
        )
        self.apply(rollout_id, change)

    def write_attempt(self, rollout_id: str, attempt_id: str, changes: dict[str, Any]) -> None:
        attempt, is_latest = self.find(rollout_id, attempt_id)
        change = lifecycle.update_attempt(
            self.rollouts[rollout_id],
            attempt,
            changes,
            is_latest=is_latest,
            worker=self.workers.get(changes.get("worker_id", attempt.worker_id) or ""),
            now=self.now,
        )
        self.apply(rollout_id, change)
        if changes.get("worker_id", attempt.worker_id) != attempt.worker_id:
            self.release_from(attempt)

    def write_rollout(self, rollout_id: str, changes: dict[str, Any]) -> None:
        attempts = self.attempts[rollout_id]
        latest = attempts[-1] if attempts else None
        who = latest.worker_id if latest else None
        change = lifecycle.update_rollout(
            self.rollouts[rollout_id],
            changes,
            attempt=latest,
            worker=self.workers.get(who or ""),
            now=self.now,
        )
        self.apply(rollout_id, change)

    def heartbeat(self, who: str) -> None:
        known = self.workers.get(who)
        self.workers[who] = lifecycle.worker_heartbeat(who, known, {}, now=self.now)

    def watchdog(self) -> None:
        for rollout_id in list(self.active):
            if lifecycle.is_watched(self.rollouts[rollout_id]) and self.attempts[rollout_id]:
                attempt = self.attempts[rollout_id][-1]
                status = lifecycle.verdict(self.rollouts[rollout_id], attempt, now=self.now)
                if status:
                    self.write_attempt(rollout_id, attempt.attempt_id, {"status": status})

    def close(self) -> None:
        """Nothing to undo."""

    def seen(self) -> tuple[Any, Any, Any, Any]:
        attempts = [item for group in self.attempts.values() for item in group]
        return list(self.rollouts.values()), attempts, list(self.workers.values()), self.queue


@pytest.fixture
def naive_lifecycle() -> type[NaiveLifecycle]:
    return NaiveLifecycle


@pytest.fixture
def pure_subject() -> type[PureSubject]:
    return PureSubject
