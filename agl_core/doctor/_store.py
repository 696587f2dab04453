"""The data: why work does not move, and why traces lack what algorithms need.

A check reads the store as anybody does; like any reader, it may cause the store to pass verdicts
on attempts that are overdue anyway.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from agl_core.doctor._findings import Finding, examples
from agl_core.doctor._traces import TraceChecks
from agl_core.doctor._work import Snapshot, check_work
from agl_core.errors import SpansEvictedError
from agl_core.types import AttemptedRollout

if TYPE_CHECKING:
    from agl_core.store.base import LightningStore

__all__ = ["check_store"]

DEFAULT_TRACES: Final = 500
SILENT_SECONDS: Final = 60.0


async def check_store(
    store: LightningStore,
    *,
    now: float | None = None,
    silent_seconds: float = SILENT_SECONDS,
    max_traces: int = DEFAULT_TRACES,
) -> list[Finding]:
    """Look at the work and the traces in a store.

    Args:
        store: The store.
        now: The time, in epoch seconds; by default the clock's.
        silent_seconds: After how long without a sign of life a worker counts as gone.
        max_traces: How many traces to read; the newest count.
    """
    now = time.time() if now is None else now
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
