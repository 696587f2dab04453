"""A second account of the lifecycle, for the state machine test.

Written from the specification and not from the code: one mutable dict per record, and tables.
"""

from __future__ import annotations

from typing import Any

import pytest

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
        who = self.workers.get(attempt["worker"] or "")
        if was == "unresponsive" and who and who["status"] == "unknown" and who["job"] is None:
            self.hire(attempt["worker"], rollout_id, attempt_id)
        rollout = self.rollouts[rollout_id]
        if rollout["attempts"][-1] == attempt_id:
            pulled = {"preparing"} | ({"requeuing"} if was == "unresponsive" else set())
            if rollout["status"] in pulled:
                self.move(rollout_id, "running")

    def write_attempt(self, rollout_id: str, attempt_id: str, changes: dict[str, Any]) -> None:
        attempt = self.attempts[rollout_id, attempt_id]
        rollout = self.rollouts[rollout_id]
        cancelled = rollout["status"] == "cancelled"
        if "worker_id" in changes:
            attempt["worker"] = changes["worker_id"]
        if "metadata" in changes:
            attempt["metadata"] = changes["metadata"]
        if "last_heartbeat_time" in changes:
            attempt["beat"] = changes["last_heartbeat_time"]
        status = changes.get("status")
        if status:
            attempt["status"] = status
            attempt["end"] = None if status in ("preparing", "running") else self.now
            if rollout["attempts"][-1] == attempt_id and not cancelled:
                target = FOLLOWS[status]
                if status in rollout["retry"] and attempt["number"] < rollout["max"]:
                    target = "requeuing" if target == "failed" else target
                if target != rollout["status"]:
                    self.move(rollout_id, target)

        who = attempt["worker"]
        if not who:
            return
        job = self.workers[who]["job"] if who in self.workers else None
        mine = job == (rollout_id, attempt_id)
        taken = "worker_id" in changes and job is None and not cancelled
        if not (mine or taken) or not (status or "worker_id" in changes):
            return
        then = WORKER_AFTER[attempt["status"]]
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
        if status == "cancelled" and rollout["attempts"]:
            latest = rollout["attempts"][-1]
            who = self.attempts[rollout_id, latest]["worker"]
            if who in self.workers and self.workers[who]["job"] == (rollout_id, latest):
                self.dismiss(who, "unknown")

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

    def dismiss(self, who: str, status: str) -> None:
        self.worker(who).update(status=status, idle=self.now, job=None)


@pytest.fixture
def naive_lifecycle() -> type[NaiveLifecycle]:
    return NaiveLifecycle
