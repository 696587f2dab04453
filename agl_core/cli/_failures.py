"""Why the rollouts of a run failed, for the summaries of ``agl train`` and ``agl eval``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import Rollout

_MOST: Final = 1000
"""Rollouts whose cause is read; those that failed last."""
_SHOWN: Final = 3
_LONGEST: Final = 200  # characters of one cause


async def failed_rollouts(store: LightningStore, count: int) -> list[Rollout]:
    """Return the rollouts that failed last."""
    if not count:
        return []
    page = await store.query_rollouts(
        status_in=["failed"], sort_by="start_time", sort_order="desc", limit=min(count, _MOST)
    )
    return list(page)


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
        return cls(statuses, Counter([await _cause(store, rollout) for rollout in failed]))

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


async def _cause(store: LightningStore, rollout: Rollout) -> str:
    attempt = getattr(rollout, "attempt", None) or await store.get_latest_attempt(
        rollout.rollout_id
    )
    if attempt is None:
        return "it has no attempt"
    said = attempt.metadata or {}
    if "error" not in said:
        return f"its attempt is {attempt.status}"
    line = " ".join(str(said["error"]).split())
    kind = str(said.get("error_type") or "")
    if kind and line.startswith(f"{kind}: "):
        line = f"{kind} {line.removeprefix(f'{kind}: ')}"
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
