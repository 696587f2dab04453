"""Finds rollouts that wait, hang or failed, with pure functions of the store's records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from agl_core.doctor import Finding, examples
from agl_core.status import is_abandoned
from agl_core.types import (
    QUEUING_STATUSES,
    RUNNING_STATUSES,
    AttemptedRollout,
    Rollout,
    Worker,
)

__all__ = ["Snapshot", "check_work"]

_START_RUNNERS = "start some: agl runner --store URL, or a Trainer with n_runners"
_CANCEL = "cancel with store.update_rollout(ID, status='cancelled')"


@dataclass(frozen=True)
class Snapshot:
    """The records that the checks read.

    Attributes:
        rollouts: All rollouts, with their latest attempts.
        workers: All workers by id.
        resources: Ids of the resources snapshots.
        now: The time, in epoch seconds.
        silent_seconds: Seconds without a heartbeat or request after which a worker counts as gone.
    """

    rollouts: Sequence[Rollout | AttemptedRollout]
    workers: Mapping[str, Worker]
    resources: Set[str]
    now: float
    silent_seconds: float

    def silence(self, worker: Worker) -> float:
        """Return the seconds since the worker's last heartbeat or request."""
        signs = (worker.last_heartbeat_time, worker.last_dequeue_time, worker.last_busy_time)
        return self.now - max((sign for sign in signs if sign is not None), default=0.0)

    def is_alive(self, worker: Worker | None) -> bool:
        return worker is not None and self.silence(worker) <= self.silent_seconds


def check_work(snapshot: Snapshot) -> list[Finding]:
    """Return why rollouts wait, hang or fail."""
    return [
        *_waiting(snapshot),
        *_hanging(snapshot),
        *_failed(snapshot),
        *_missing_resources(snapshot),
    ]


def _waiting(snapshot: Snapshot) -> Iterator[Finding]:
    waiting = [r.rollout_id for r in snapshot.rollouts if r.status in QUEUING_STATUSES]
    if not waiting:
        return
    count = f"{len(waiting)} rollouts wait in the queue ({examples(waiting)})"
    workers = snapshot.workers.values()
    alive = [worker for worker in workers if snapshot.is_alive(worker)]
    if not workers:
        what, todo = f"{count}, and no runner has ever polled this store", _START_RUNNERS
    elif not alive:
        last = min(snapshot.silence(worker) for worker in workers)
        what = f"{count}, and no runner is alive: the last sign of one is {_ago(last)} old"
        todo = _START_RUNNERS
    else:
        busy = sum(worker.status == "busy" for worker in alive)
        what = f"{count}; {busy} of {len(alive)} live runners are busy"
        yield Finding("info", "queue", what, ids=tuple(waiting))
        return
    yield Finding("error", "queue", what, todo, tuple(waiting))


def _hanging(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield the running rollouts on which no live runner works."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for rollout in snapshot.rollouts:
        if rollout.status not in RUNNING_STATUSES:
            continue
        reason = _why_it_hangs(rollout, snapshot)
        if reason is not None:
            reasons[reason].append(rollout.rollout_id)
    for (what, todo), ids in reasons.items():
        count = f"{len(ids)} rollouts are {what} ({examples(ids)})"
        yield Finding("error", "stuck", count, todo, tuple(ids))


def _why_it_hangs(
    rollout: Rollout | AttemptedRollout, snapshot: Snapshot
) -> tuple[str, str] | None:
    """Return what is wrong with a running rollout and what to do; None if nothing is wrong."""
    if not isinstance(rollout, AttemptedRollout):
        return f"{rollout.status} without an attempt", "requeue them: update_rollout(status=…)"
    attempt, config = rollout.attempt, rollout.config
    heard = max(attempt.start_time, attempt.last_heartbeat_time or 0.0)
    if snapshot.now - heard <= snapshot.silent_seconds:
        return None
    worker = snapshot.workers.get(attempt.worker_id or "")
    on_it = worker is not None and not is_abandoned(worker, attempt)
    if snapshot.is_alive(worker) and on_it:
        return None  # the runner waits for a long model call, which writes no span until it ends
    if worker is None:
        status = "preparing: started without a worker" if attempt.worker_id is None else "lost"
        what = f"{status}, and sent no heartbeat for {_ago(snapshot.now - heard)}"
    elif snapshot.is_alive(worker):
        what = "abandoned by their runner, which is alive and has another attempt"
    else:
        what = f"held by runners that are gone (silent for more than {snapshot.silent_seconds:g} s)"
    watched = config.unresponsive_seconds is not None or config.timeout_seconds is not None
    if watched:
        return what, "the watchdog will end them: have a server or a trainer run on this store"
    return what, f"nothing will end them: set RolloutConfig.unresponsive_seconds; {_CANCEL}"


def _failed(snapshot: Snapshot) -> Iterator[Finding]:
    reasons: dict[str, list[str]] = defaultdict(list)
    exhausted: list[str] = []
    for rollout in snapshot.rollouts:
        if rollout.status != "failed" or not isinstance(rollout, AttemptedRollout):
            continue
        attempt, config = rollout.attempt, rollout.config
        reason = (attempt.metadata or {}).get("error") or f"its attempt is {attempt.status}"
        reasons[str(reason)].append(rollout.rollout_id)
        if attempt.status in config.retry_condition and config.max_attempts > 1:
            exhausted.append(rollout.rollout_id)
    for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
        what = f"{len(ids)} rollouts failed ({examples(ids)}): {reason}"
        todo = "fix the agent, or allow retries: RolloutConfig(max_attempts=…, "
        yield Finding("warning", "failed", what, todo + "retry_condition=[…])", tuple(ids))
    if exhausted:
        what = f"{len(exhausted)} rollouts failed in every attempt they had ({examples(exhausted)})"
        todo = "the cause seems to be permanent: see the errors above; or raise max_attempts"
        yield Finding("warning", "retries", what, todo, tuple(exhausted))


def _missing_resources(snapshot: Snapshot) -> Iterator[Finding]:
    unfinished = QUEUING_STATUSES | RUNNING_STATUSES
    missing = [
        rollout.rollout_id
        for rollout in snapshot.rollouts
        if rollout.status in unfinished
        and rollout.resources_id is not None
        and rollout.resources_id not in snapshot.resources
    ]
    if missing:
        what = f"{len(missing)} rollouts ask for resources that the store does not have"
        todo = f"store them under that id (update_resources), or {_CANCEL}"
        yield Finding("error", "resources", f"{what} ({examples(missing)})", todo, tuple(missing))


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
