"""Checks the data in a store: why rollouts do not progress, and what traces lack.

A check calls the store's public methods; like any call, it may cause the store to mark overdue
attempts as timed out or unresponsive.
"""

from __future__ import annotations

from agl_core.doctor import Finding, examples
from agl_core.errors import SpansEvictedError
from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout
from agl_trace.check.traces import TraceChecks
from agl_trace.check.work import Snapshot, check_work

__all__ = ["check_store"]


async def check_store(
    store: LightningStore,
    *,
    silent_seconds: float = 60.0,
    max_traces: int = 500,
    now: float | None = None,
) -> list[Finding]:
    """Check the rollouts, workers and traces in a store.

    Args:
        store: The store.
        silent_seconds: Seconds without a heartbeat or request after which a worker counts as gone.
        max_traces: How many traces to read, newest first.
        now: The time, in epoch seconds; by default that of the store's clock.
    """
    if now is None:
        now = await store.now()
    rollouts = list(await store.query_rollouts())
    snapshot = Snapshot(
        rollouts=rollouts,
        workers={worker.worker_id: worker for worker in await store.query_workers()},
        resources={update.resources_id for update in await store.query_resources()},
        now=now,
        silent_seconds=silent_seconds,
    )
    counts = f"{len(rollouts)} rollouts, {len(snapshot.workers)} workers"
    findings = [Finding("ok", "store", f"{counts}, {len(snapshot.resources)} resources snapshots")]
    findings += check_work(snapshot)
    attempted = [rollout for rollout in rollouts if isinstance(rollout, AttemptedRollout)]
    newest = sorted(attempted, key=lambda rollout: rollout.attempt.start_time)[-max_traces:]
    if len(newest) < len(attempted):
        findings.append(
            Finding("info", "sample", f"read the newest {len(newest)} traces of {len(attempted)}")
        )
    return findings + await _check_traces(store, newest)


async def _check_traces(store: LightningStore, rollouts: list[AttemptedRollout]) -> list[Finding]:
    checks = TraceChecks()
    evicted: list[str] = []
    for rollout in rollouts:
        try:
            spans = (await store.query_spans(rollout.rollout_id)).items
        except SpansEvictedError:
            evicted.append(rollout.rollout_id)
        else:
            checks.add(rollout, spans)
    findings = checks.findings()
    if evicted:
        findings.append(
            Finding(
                "warning",
                "evicted",
                f"the spans of {len(evicted)} rollouts were dropped from memory "
                f"({examples(evicted)})",
                "use a durable store (agl store --backend sqlite), or raise "
                "eviction_memory_threshold",
                tuple(evicted),
            )
        )
    return findings
