"""A run in which nothing succeeded is a failure, and says why."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import AgentCancelledError, RunFailedError
from agl_core.execution import RUN_ENDED

if TYPE_CHECKING:
    from agl_core.algorithm import BatchOutcome
    from agl_core.store import LightningStore
    from agl_core.types import Rollout

_MOST: Final = 1000
"""Rollouts whose cause is read; those that failed last."""
_STOPPED: Final = (RUN_ENDED, AgentCancelledError.__name__)
_LONGEST: Final = 200  # characters of one cause


async def check_success(store: LightningStore, since: float) -> None:
    """Check the rollouts that were enqueued since a time, in epoch seconds.

    Raises:
        RunFailedError: Some failed and none succeeded. Those that the end of the run stopped do not
            count.
    """
    newest = partial(store.query_rollouts, sort_by="start_time", sort_order="desc")
    succeeded = await newest(status_in=["succeeded"], limit=1)
    if any(rollout.start_time >= since for rollout in succeeded):
        return
    page = await newest(status_in=["failed"], limit=_MOST)
    await _check_failed(store, [rollout for rollout in page if rollout.start_time >= since])


async def check_outcome(store: LightningStore, outcome: BatchOutcome) -> None:
    """Do as :func:`check_success` for the rollouts of an evaluation."""
    if "succeeded" not in outcome.statuses():
        failed = [one.rollout for one in outcome if one.rollout.status == "failed"]
        await _check_failed(store, failed, outcome)


async def _check_failed(store: LightningStore, failed: list[Rollout], outcome: Any = None) -> None:
    found = Counter([await failure_cause(store, rollout) for rollout in failed])
    causes = [(what, n) for what, n in found.most_common() if not what.startswith(_STOPPED)]
    if not causes:
        return
    total = sum(n for _, n in causes)
    what, count = causes[0]
    if len(causes) > 1:
        others = f"{len(causes) - 1} other cause{'s' * (len(causes) > 2)}"
        what = f"{count} times {what}, and {others}"
    error = RunFailedError(f"{total} of {total} failed: {what}")
    error.outcome = outcome
    raise error


async def failure_cause(store: LightningStore, rollout: Rollout) -> str:
    """Return why the latest attempt of a rollout failed, in one line."""
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
