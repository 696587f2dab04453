"""Advice: the throughput by number of runners, what saturates, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from agl_simulate.cluster import Cluster, Prediction
from agl_simulate.engine import simulate
from agl_simulate.workload import Workload

__all__ = ["Advice", "advise"]

_SATURATED: Final = 0.95
"""Share of the highest throughput from which on more runners do not count."""
_BUSY: Final = 0.85
"""Share of the time from which on a part counts as the bottleneck: its queue grows."""
_WORTH: Final = 1.05
"""Factor of the throughput that makes a change worth naming."""
_BATCHES: Final = 12
"""Simulated batches: enough that the first and the last one do not matter."""
_ROLLOUTS_PER_RUNNER: Final = 12
"""Rollouts that each runner does, for the same reason."""
_FEWEST: Final = 400
"""Rollouts of the smallest simulation."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What :func:`advise` found.

    Attributes:
        by_runners: Number of runners and the prediction, ascending.
        saturates_at: The number of runners from which on more of them add less than 5 %; None if
            that is more than twice those asked for.
        bottleneck: The part that limits the throughput.
        sentences: The advice, in sentences.
    """

    by_runners: Sequence[tuple[int, Prediction]]
    saturates_at: int | None
    bottleneck: str
    sentences: Sequence[str]


def advise(workload: Workload, cluster: Cluster, *, rollouts: int, seed: int = 0) -> Advice:
    """Simulate other numbers of runners and other settings, with few rollouts each.

    Args:
        workload: The recorded work of rollouts.
        cluster: The cluster.
        rollouts: Most rollouts per simulation.
        seed: Of the random draws.
    """

    def predict(other: Cluster) -> Prediction:
        enough = max(_FEWEST, _BATCHES * (other.batch or 0), _ROLLOUTS_PER_RUNNER * other.runners)
        return simulate(workload, other, rollouts=min(rollouts, enough), seed=seed)

    by_runners = [(n, predict(replace(cluster, runners=n))) for n in _numbers(cluster.runners)]
    highest = max(found.rollouts_per_second for _, found in by_runners)
    first = next(n for n, found in by_runners if found.rollouts_per_second >= _SATURATED * highest)
    saturates_at = first if first < by_runners[-1][0] else None
    here = dict(by_runners)[cluster.runners]
    bottleneck = _bottleneck(here, cluster)
    sentences = [_about_runners(cluster, saturates_at, bottleneck)]
    for name, other in _changes(workload, cluster):
        factor = predict(other).rollouts_per_second / here.rollouts_per_second
        if factor >= _WORTH:
            sentences.append(f"{name} would give {factor - 1:.0%} more rollouts per second.")
    if workload.server_limit is None:
        sentences.append(
            f"The model servers were never full in the record, with up to {workload.most_calls} "
            "calls at a time; where they saturate is not known. Record a run with more runners, or "
            "give --server-limit."
        )
    return Advice(by_runners, saturates_at, bottleneck, sentences)


def _numbers(runners: int) -> list[int]:
    """Return numbers of runners around the one asked for, up to twice as many."""
    factors = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1, 5 / 4, 3 / 2, 2)
    return sorted({max(1, round(runners * factor)) for factor in factors})


def _bottleneck(found: Prediction, cluster: Cluster) -> str:
    """Return what limits the throughput: what is busiest, if it is busy."""
    shares = {
        "the model servers": found.servers_busy,
        "the proxy": found.proxy_busy,
        "the store": found.store_busy,
        "the trainer": found.trainer_busy,
        "the runners": found.runners_busy,
    }
    busiest = max(shares, key=lambda name: shares[name] or 0.0)
    if (shares[busiest] or 0.0) >= _BUSY:
        return busiest
    if cluster.mode == "open" and cluster.arrivals_per_second:
        return "the arrivals"
    if cluster.batch is not None and cluster.batch <= cluster.runners:
        return "the size of the batch"
    return "the turns of rollouts and updates"


def _about_runners(cluster: Cluster, saturates_at: int | None, bottleneck: str) -> str:
    name = bottleneck[0].upper() + bottleneck[1:]
    if saturates_at is None:
        return f"{name} limit the throughput; more than {2 * cluster.runners} runners add to it."
    verb = "saturate" if name.endswith("s") else "saturates"
    if saturates_at <= cluster.runners:
        return f"{name} {verb} at {saturates_at:,} runners; more add nothing."
    return f"{name} {verb} at {saturates_at:,} runners; add up to that number."


def _changes(workload: Workload, cluster: Cluster) -> list[tuple[str, Cluster]]:
    """Return other settings worth trying, with their names."""
    changes: list[tuple[str, Cluster]] = []
    if workload.server_limit is not None:
        more = cluster.servers + max(1, cluster.servers // 4)
        changes.append((f"{more} model servers", replace(cluster, servers=more)))
    if cluster.mode == "sync" and workload.updates:
        changes.append(("Overlap (one step off)", replace(cluster, mode="overlap")))
    if cluster.batch is not None and cluster.mode != "open":
        double = 2 * cluster.batch
        changes.append((f"Batches of {double:,}", replace(cluster, batch=double)))
    if cluster.proxy_limit:
        changes.append(("A second proxy", replace(cluster, proxy_limit=2 * cluster.proxy_limit)))
    if cluster.store_limit:
        changes.append(
            ("A second store server", replace(cluster, store_limit=2 * cluster.store_limit))
        )
    return changes
