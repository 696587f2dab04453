"""Draws a snapshot on one screen of any size, from 80 by 24 characters."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from agl_core.types import AttemptedRollout, Rollout, Worker
from agl_top.snapshot import Snapshot
from agl_top.words import NONE, ago, count, printable, reward, seconds, spark

_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "running": "cyan",
    "busy": "cyan",
    "preparing": "magenta",
    "requeuing": "yellow",
}
_HEAD = 5
"""Lines above the list."""
_SILENT_SECONDS = 60
"""A worker that sends nothing for this long: several heartbeats are missing."""


class Screen:
    """A snapshot that fills the console's height and never exceeds it.

    Args:
        where: Name of the store.
        snapshot: What to draw; None before the first.
        problem: Why the store could not be read, if it could not.
    """

    def __init__(self, where: str, snapshot: Snapshot | None, problem: str = "") -> None:
        self._where = where
        self._snapshot = snapshot
        self._problem = problem

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, as many as the console has."""
        height = (options.height or console.height) - 1
        unicode = (options.encoding or "").startswith("utf")
        clock = time.strftime("%H:%M:%S")
        title = f"agl top  {printable(self._where, max(10, options.max_width - 30))}  {clock}"
        yield _line(Text(title, style="bold"), options)
        shown = self._snapshot
        if self._problem:
            yield _line(Text(f"{printable(self._problem)}; trying again", style="red"), options)
        if shown is None:
            return
        for line in (_rollouts(shown), _rates(shown), _rewards(shown, unicode)):
            yield _line(line, options)
        room = height - _HEAD - bool(self._problem)
        workers = list(shown.workers)[: max(1, room // 3)]
        yield _workers(workers, shown.time)
        rest = room - len(workers) - 1
        if rest > 0:
            yield Text("")
            yield _latest(shown, rest - 1)


def _line(text: Text, options: ConsoleOptions) -> Text:
    text.truncate(options.max_width, overflow="ellipsis")
    return text


def _rollouts(shown: Snapshot) -> Text:
    line = Text("rollouts  ")
    for status, number in shown.counts.items():
        if number or status in ("queuing", "running", "succeeded", "failed"):
            line.append(f"{status} {number}  ", style=_STYLES.get(status, "") if number else "dim")
    return line.append(f"of {shown.total}")


def _rates(shown: Snapshot) -> Text:
    busy = sum(worker.status == "busy" for worker in shown.workers)
    rate = NONE if shown.finished_per_second is None else f"{shown.finished_per_second:.2f}/s"
    line = f"rate      {rate} finished   {count(len(shown.workers), 'worker')}, {busy} busy"
    open_runs = [name for name, finished in shown.runs.items() if not finished]
    if open_runs:
        line += f"   run {printable(', '.join(open_runs), 40)}"
    return Text(line)


def _rewards(shown: Snapshot, unicode: bool) -> Text:
    rewards = shown.recent_rewards
    if not rewards:
        return Text("reward    none yet", style="dim")
    mean = sum(rewards) / len(rewards)
    return Text(f"reward    {mean:.3f} mean of the last {len(rewards)}  ").append(
        spark(rewards[-30:], unicode=unicode), style="green"
    )


def _table(*columns: tuple[str, int | None]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), expand=True)
    for name, width in columns:
        ratio = None if width else 1
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=width, ratio=ratio)
    return table


def _workers(workers: Sequence[Worker], now: float) -> Table:
    table = _table(("WORKER", None), ("STATUS", 8), ("HEARD", 9), ("LOAD", 16), ("ROLLOUT", 16))
    for worker in workers:
        heard = max(worker.last_heartbeat_time or 0, worker.last_dequeue_time or 0) or None
        silent = heard is not None and now - heard > _SILENT_SECONDS
        table.add_row(
            Text(printable(worker.worker_id, 60)),
            Text(worker.status, style=_STYLES.get(worker.status, "dim")),
            Text(ago(heard, now), style="red" if silent else ""),
            Text(NONE if silent else load_of(worker)),
            Text(printable(worker.current_rollout_id or NONE, 40)),
        )
    return table


def load_of(worker: Worker) -> str:
    """Return the load that a worker reported: ``cpu 31% gpu 88%``."""
    stats = worker.heartbeat_stats or {}
    words: list[str] = []
    cpu = stats.get("cpu_usage_pct")
    if isinstance(cpu, (int, float)):
        words.append(f"cpu {cpu:.0f}%")
    gpus = stats.get("gpus")
    used = [gpu.get("util_pct") for gpu in gpus if isinstance(gpu, dict)] if gpus else []
    known = [value for value in used if isinstance(value, (int, float))]
    if known:
        words.append(f"gpu {max(known):.0f}%")
    return " ".join(words) or NONE


def _latest(shown: Snapshot, rows: int) -> Table:
    table = _table(("ROLLOUT", 16), ("STATUS", 10), ("TRY", 3), ("REWARD", 7), ("TOOK", 9))
    table.add_column("TASK", no_wrap=True, overflow="ellipsis", ratio=1)
    for rollout in [*shown.running, *shown.finished][:rows]:
        table.add_row(*rollout_cells(rollout, shown.rewards.get(rollout.rollout_id), shown.time))
    return table


def rollout_cells(rollout: Rollout, found: float | None, now: float) -> list[Text]:
    """Return the id, status, attempt, reward, duration and task of a rollout."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    took = None if attempt is None else (attempt.end_time or now) - attempt.start_time
    return [
        Text(printable(rollout.rollout_id, 40)),
        Text(rollout.status, style=_STYLES.get(rollout.status, "")),
        Text(NONE if attempt is None else str(attempt.sequence_id)),
        Text(reward(found)),
        Text(seconds(took)),
        Text(printable(rollout.input)),
    ]
