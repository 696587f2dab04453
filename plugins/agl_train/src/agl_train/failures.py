"""Failures and retries, for the summaries of ``agl train`` and ``agl eval``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from agl_core.store import each_item

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Attempt, Rollout, RolloutStatus

_MOST: Final = 1000
"""Rollouts whose cause is read; those that failed last."""
_SHOWN: Final = 3
"""Kinds of failure that are named, those with the most rollouts."""


async def failed_rollouts(
    store: LightningStore, count: int, runs: Container[str | None] | None = None
) -> list[Rollout]:
    """Return the rollouts that failed last.

    Args:
        store: The store.
        count: How many; at most 1,000 are returned.
        runs: Names of the runs that they belong to, with None for those without a run; by default
            those of all runs.
    """
    return await _last(store, count, runs, ["failed"])


async def retried_attempts(
    store: LightningStore, count: int, runs: Container[str | None] | None = None
) -> dict[str, int]:
    """Return the number of attempts that later ones replaced, by status, in the last rollouts.

    One that was taken for lost, such as behind a cut link, may have succeeded later.

    Args:
        store: The store.
        count: Number of rollouts to look at; at most 1,000 are.
        runs: As for :func:`failed_rollouts`.
    """
    replaced: Counter[str] = Counter()
    for rollout in await _last(store, count, runs):
        last: Attempt | None = getattr(rollout, "attempt", None)
        if last is not None and last.sequence_id > 1:
            attempts = await store.query_attempts(rollout.rollout_id)
            replaced.update(a.status for a in attempts if a.sequence_id < last.sequence_id)
    return dict(replaced)


async def _last(
    store: LightningStore,
    count: int,
    runs: Container[str | None] | None,
    status_in: list[RolloutStatus] | None = None,
) -> list[Rollout]:
    """Return the last rollouts of some runs; reads past those of others."""
    wanted = min(count, _MOST)
    found: list[Rollout] = []
    if not wanted:
        return found
    async for rollout in each_item(
        store.query_rollouts,
        "rollout_id",
        status_in=status_in,
        sort_by="start_time",
        sort_order="desc",
    ):
        if runs is None or _run_of(rollout) in runs:
            found.append(rollout)
        if len(found) == wanted:
            break
    return found


def _run_of(rollout: Rollout) -> str | None:
    """Return the name of the run that enqueued a rollout; None if it has none."""
    return (rollout.metadata or {}).get("run")


class Failures:
    """The rollouts of a run that did not succeed, and their causes.

    Args:
        statuses: Number of rollouts by status; ``rollouts`` is their total.
        causes: Number of failed rollouts by cause.
    """

    def __init__(self, statuses: Mapping[str, int], causes: Mapping[str, int]) -> None:
        self._total = statuses.get("rollouts") or sum(statuses.values())
        self._statuses = statuses
        self._causes = Counter(causes).most_common()

    @classmethod
    async def read(
        cls, store: LightningStore, statuses: Mapping[str, int], failed: Iterable[Rollout]
    ) -> Failures:
        """Read the causes from the latest attempts of rollouts that failed."""
        from agl_core.trainer import failure_cause

        return cls(statuses, Counter([await failure_cause(store, rollout) for rollout in failed]))

    def rows(self) -> list[list[str]]:
        """Return rows for a table: the statuses, and below ``failed`` its causes."""
        return [
            row
            for status, count in self._statuses.items()
            for row in ([status, str(count)], *(self._causes_rows() if status == "failed" else ()))
        ]

    def _causes_rows(self) -> list[list[str]]:
        shown = [["  because of", f"{what} ({n})"] for what, n in self._causes[:_SHOWN]]
        left = len(self._causes) - len(shown)
        return shown + ([["", f"and {left} other causes"]] if left > 0 else [])

    def as_json(self) -> list[dict[str, Any]]:
        return [{"cause": what, "rollouts": count} for what, count in self._causes]

    def tell(self) -> None:
        """Say on stderr how many failures are like the ones whose tracebacks are in the log."""
        for what, count in self._causes[:_SHOWN]:
            if count > 1:
                click.echo(f"{what}: the log has one traceback, {count - 1} more like it", err=True)

    @property
    def verdict(self) -> str:
        """One line about a run in which nothing succeeded; empty for other runs."""
        failed, cancelled = self._statuses.get("failed", 0), self._statuses.get("cancelled", 0)
        if self._statuses.get("succeeded") or not failed + cancelled:
            return ""
        if failed == self._total:
            said = f"{failed} of {failed} failed"
        else:
            said = f"0 of {self._total} succeeded ({failed} failed, {cancelled} cancelled)"
        if not self._causes:
            return said
        others = len(self._causes) - 1
        (what, count) = self._causes[0]
        if not others:
            return f"{said}: {what}"
        return f"{said}: {count} times {what}, and {others} other cause{'s' * (others > 1)}"
