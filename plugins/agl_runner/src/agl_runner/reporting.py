"""Reports the progress of attempts: to the log, and as life-cycle events."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import agl_core
from agl_core.errors import error_text
from agl_core.plugins import has_listeners, notify
from agl_core.types import FINISHED_STATUSES

if TYPE_CHECKING:
    from agl_runner.attempt import AttemptRun

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES: Final = 10.0
"""A log of a day has some thousand lines of progress."""
_OWN: Final = tuple(f"{Path(file).parent}{os.sep}" for file in (agl_core.__file__, __file__))
"""Folders of the code that calls agents."""


class Progress:
    """Counts a worker's rollouts and logs a summary after the first, every ten seconds, at the end.

    Args:
        worker_id: The worker's id in the store.
        limit: Largest number of rollouts; None: no limit.
    """

    def __init__(self, worker_id: str, limit: int | None) -> None:
        self._worker_id = worker_id
        self._limit = limit
        self._done = 0
        self._failed = 0
        self._rewarded = 0
        self._rewards = 0.0
        self._told = 0
        self._next_line = 0.0

    def count(self, run: AttemptRun) -> None:
        """Count one finished attempt."""
        self._done += 1
        self._failed += run.error is not None
        if not logger.isEnabledFor(logging.INFO):
            return
        reward = _final_reward(run)
        if reward is not None:
            self._rewarded += 1
            self._rewards += reward
        if time.monotonic() >= self._next_line:
            self.tell()

    def tell(self) -> None:
        """Log the summary, unless no attempt has ended since the last one."""
        if self._told == self._done:
            return
        self._told = self._done
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        of = "" if self._limit is None else f" of {self._limit}"
        failed = f", {self._failed} failed" if self._failed else ""
        mean = f", mean reward {self._rewards / self._rewarded:.4g}" if self._rewarded else ""
        logger.info("%s: %d%s rollouts done%s%s", self._worker_id, self._done, of, failed, mean)


def report_start(run: AttemptRun) -> None:
    """Report that an attempt begins."""
    if not has_listeners():
        return
    about = {"rollout": run.rollout, "worker_id": run.place.worker_id}
    if run.rollout.attempt.sequence_id == 1:
        notify("rollout_started", **about)
    notify("attempt_started", **about)


async def report_end(run: AttemptRun, *, raised: bool = False) -> None:
    """Report that an attempt has ended and its final status is written.

    Args:
        run: The attempt.
        raised: Whether its error is raised to the caller and need not be logged.
    """
    if run.error is None or not raised:
        _log_end(run)
    if not has_listeners():
        return
    rollout, worker_id = run.rollout, run.place.worker_id
    notify("trace_finished", rollout=rollout, spans=run.spans)
    if run.status is None:
        return
    notify(
        "attempt_finished",
        rollout=rollout,
        worker_id=worker_id,
        status=run.status,
        reward=_final_reward(run),
        duration=run.duration,
        error=run.error,
    )
    try:
        final = await run.place.store.get_rollout_by_id(rollout.rollout_id)
    except Exception as error:
        logger.warning("%s: its end is not reported to listeners: %r", rollout.rollout_id, error)
        return
    if final is not None and final.status in FINISHED_STATUSES:
        notify("rollout_finished", rollout=final, worker_id=worker_id)


def _log_end(run: AttemptRun) -> None:
    if run.error is not None:
        begin = _first_foreign_frame(run.error)
        # The frames before it differ: an attempt may be the first of several in a runner.
        first = run.place.errors.count(run.error, begin) == 1
        logger.log(
            logging.ERROR if first else logging.DEBUG,
            "%s: rollout %s failed after %.2f s: %s",
            run.place.worker_id,
            run.rollout.rollout_id,
            run.duration,
            error_text(run.error),
            exc_info=(type(run.error), run.error, begin) if first else None,
        )
    elif logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "%s: rollout %s took %.2f s, %d spans, reward %s",
            run.place.worker_id,
            run.rollout.rollout_id,
            run.duration,
            len(run.spans),
            _final_reward(run),
        )


def _final_reward(run: AttemptRun) -> float | None:
    from agl_core.emitter import find_final_reward

    return find_final_reward(run.spans)


def _first_foreign_frame(error: BaseException) -> TracebackType | None:
    """Return the traceback from where it enters the agent's code; all of it if it never does."""
    begin = error.__traceback__
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_OWN):
        begin = begin.tb_next
    return begin or error.__traceback__
