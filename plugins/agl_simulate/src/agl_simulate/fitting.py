"""Fits a workload to the rollouts in a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from agl_adapters import calls_among
from agl_core import semconv
from agl_core.errors import InvalidArgumentError
from agl_core.store import LightningStore
from agl_core.types import Attempt, Rollout, Span
from agl_simulate.limit import Calls, Interval
from agl_simulate.workload import Profile, Workload

__all__ = ["fit"]

_SAME_BATCH_SECONDS: Final = 1e-3
"""Clocks are rounded; a start this soon after an end is of the same batch."""


@dataclass(slots=True)
class _Record:
    """An attempt that ended."""

    rollout: Rollout
    attempt: Attempt
    begin: float
    end: float
    calls: list[Interval] = field(default_factory=list[Interval])

    @property
    def failed(self) -> bool:
        return self.attempt.status != "succeeded"


async def fit(store: LightningStore, *, newest: int = 2000, servers: int = 1) -> Workload:
    """Fit a workload to the newest rollouts that have ended.

    The more the number of rollouts at a time differs in the record, the better the limit of the
    model servers is known; the beginning and the end of each batch are enough.

    Args:
        store: The store.
        newest: How many rollouts to read.
        servers: How many model servers there were.

    Raises:
        InvalidArgumentError: The store has no rollout that has ended.
    """
    page = await store.query_rollouts(
        status_in=["succeeded", "failed"], sort_by="start_time", sort_order="desc", limit=newest
    )
    records: list[_Record] = []
    for rollout in reversed(page.items):
        for attempt in await store.query_attempts(rollout.rollout_id):
            if attempt.end_time is not None and attempt.end_time >= attempt.start_time:
                spans = await store.query_spans(rollout.rollout_id, attempt.attempt_id)
                record = _Record(rollout, attempt, attempt.start_time, attempt.end_time)
                record.calls = _model_calls(spans, record)
                records.append(record)
    if not records:
        raise InvalidArgumentError("the store has no rollout that has ended; run some first")
    calls = Calls([call for record in records for call in record.calls])
    limit = calls.limit()
    lengths = iter(calls.lengths(limit))
    batches = _batches(page.items)
    return Workload(
        profiles=[_profile(record, [next(lengths) for _ in record.calls]) for record in records],
        turnarounds=_turnarounds(records) or (0.0,),
        updates=[begin - end for (_, _, end), (begin, _, _) in pairwise(batches)],
        batch=round(median(size for _, size, _ in batches)) if len(batches) > 1 else None,
        server_limit=None if limit is None else limit / servers,
        most_calls=calls.most,
        runners=Calls([(record.begin, record.end) for record in records]).most,
        servers=servers,
        max_attempts=max(rollout.config.max_attempts for rollout in page.items),
    )


def _model_calls(spans: Sequence[Span], record: _Record) -> list[Interval]:
    """Return begin and end of an attempt's model calls, in order and without overlap.

    A call that both an SDK and the proxy recorded lasts as long as the proxy saw it.
    """
    found = calls_among(spans)
    timed: list[Interval] = []
    for call in found:
        proxied = (span for span in call.spans if span.name == semconv.SPAN_MODEL_CALL)
        span = next(proxied, call.node.span)
        if span.start_time is not None and span.end_time is not None:
            timed.append((span.start_time, span.end_time))
    ahead = _ahead(timed, record)
    merged: list[Interval] = []
    for start, stop in sorted(timed):
        begin, end = max(start - ahead, record.begin), min(stop - ahead, record.end)
        if end <= begin:
            continue
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _ahead(calls: Sequence[Interval], record: _Record) -> float:
    """Return the seconds by which the clock of calls is ahead of the store's, at a guess.

    It is 0 if they begin within their attempt; else they are taken for the middle of it.
    """
    first = min((start for start, _ in calls), default=record.begin)
    last = max((end for _, end in calls), default=record.end)
    if record.begin <= first <= record.end:
        return 0.0
    return (first + last - record.begin - record.end) / 2


def _profile(record: _Record, lengths: Sequence[float]) -> Profile:
    steps: list[float] = []
    last = record.begin
    for (begin, end), length in zip(record.calls, lengths, strict=True):
        steps += [begin - last, length]
        last = end
    return Profile((*steps, record.end - last), record.failed)


def _turnarounds(records: Iterable[_Record]) -> list[float]:
    """Return the seconds between the end of an attempt and the same runner's next claim.

    A worker with several rollouts at a time is several runners: the next claim belongs to the one
    that has been free for the shortest time. Only claims count whose rollout was waiting already.
    """
    by_worker: dict[str, list[_Record]] = {}
    for record in records:
        by_worker.setdefault(record.attempt.worker_id or "", []).append(record)
    found: list[float] = []
    for attempts in by_worker.values():
        ends: list[float] = []
        for record in sorted(attempts, key=lambda record: record.begin):
            before = [end for end in ends if end <= record.begin]
            if before:
                ends.remove(max(before))
                waited = record.attempt.sequence_id == 1 and record.rollout.start_time < max(before)
                if waited:
                    found.append(record.begin - max(before))
            ends.append(record.end)
    return found


def _batches(rollouts: Iterable[Rollout]) -> list[tuple[float, int, float]]:
    """Return begin, size and end of the batches: a batch begins once all before it has ended."""
    batches: list[tuple[float, int, float]] = []
    for rollout in sorted(rollouts, key=lambda rollout: rollout.start_time):
        end = rollout.end_time or rollout.start_time
        if batches and rollout.start_time <= batches[-1][2] + _SAME_BATCH_SECONDS:
            begin, size, last = batches[-1]
            batches[-1] = (begin, size + 1, max(last, end))
        else:
            batches.append((rollout.start_time, 1, end))
    return batches
