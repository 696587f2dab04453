"""Exports a store to files: reads rollouts one task at a time, builds their rows, writes them.

Memory holds the ids of all rollouts, and the spans of one task's rollouts at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from agl_core.algorithm import show_progress
from agl_core.errors import ConfigError, SpansEvictedError
from agl_core.store import each_item
from agl_core.types import AttemptedRollout, ReplayConfig, Rollout, RolloutMode, RolloutStatus
from agl_export.files import check_format, writing_rows
from agl_export.report import ExportReport, Skip
from agl_export.samples import Row, Sample, final_reward, task_key

if TYPE_CHECKING:
    from agl_core.store import LightningStore

__all__ = ["Builder", "Selection", "Split", "export_dataset", "read_samples"]

Builder = Callable[[Sequence[Sample], ExportReport], list[Row]]
"""Makes the rows of one task from its samples, and counts each sample."""

_PAGE: Final = 200
"""Rollouts per query: their spans take far longer to read."""
_READERS: Final = 16  # rollouts whose spans are read concurrently
_HASHES: Final = 2**64
"""Number of values of a digest of 8 bytes."""
_ABOUT: Final = frozenset(
    {"reward", "task", "rollout_id", "attempt_id", "parent_id", "turn", "agent", "response_id"}
    | {"ids_present", "logprobs_present", "altered_sampling"}
    | {"models", "model_versions", "break_cause"}
    | {"reward_chosen", "reward_rejected", "rollout_chosen", "rollout_rejected"}
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects rollouts; None allows any value.

    Attributes:
        run: Name of their run.
        statuses: Their final statuses.
        modes: Their modes.
        resources_id: The snapshot of resources that they ran with.
    """

    run: str | None = None
    statuses: Sequence[RolloutStatus] | None = ("succeeded",)
    modes: Sequence[RolloutMode] | None = None
    resources_id: str | None = None

    def why_not(self, rollout: Rollout) -> Skip | None:
        """Return why a rollout is left out, or None if it is used."""
        if self.run is not None and (rollout.metadata or {}).get("run") != self.run:
            return Skip.OTHER_RUN
        if self.modes is not None and rollout.mode not in self.modes:
            return Skip.OTHER_MODE
        if self.resources_id is not None and rollout.resources_id != self.resources_id:
            return Skip.OTHER_RESOURCES
        if self.statuses is not None and rollout.status not in self.statuses:
            return Skip.OTHER_STATUS
        if not isinstance(rollout, AttemptedRollout):
            return Skip.NO_ATTEMPT
        return None


@dataclass(frozen=True, slots=True)
class Split:
    """Divides tasks into training and validation. All rows of a task are on one side.

    A task's side depends only on the task and the seed, so it is stable while rollouts are added.
    The share is met on average.

    Attributes:
        valid: Share of the tasks for validation, from 0 to 1.
        seed: Selects which tasks are for validation.
    """

    valid: float = 0.0
    seed: int = 0

    def side(self, task: str) -> str:
        """Return ``train`` or ``valid`` for the key of a task."""
        digest = hashlib.blake2b(f"{self.seed}:{task}".encode(), digest_size=8).digest()
        return "valid" if int.from_bytes(digest) < self.valid * _HASHES else "train"

    def files(self, path: Path) -> dict[str, Path]:
        """Return the file of each side: ``x.jsonl``, and ``x.valid.jsonl`` if there is a split."""
        if not self.valid:
            return {"train": path}
        return {"train": path, "valid": _valid_file(path)}


def _valid_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}.valid{path.suffix}")


def _check_split(split: Split, path: Path) -> None:
    """Check that no older validation file stays beside a dataset that has all tasks.

    It is not deleted: the user may have written it otherwise, such as with ``--mode val``.

    Raises:
        ConfigError: There is one.
    """
    if not split.valid and (older := _valid_file(path)).exists():
        raise ConfigError(
            f"{older} may have tasks that go to {path}, too: remove it, split with --valid, or "
            "take another name"
        )


async def export_dataset(
    store: LightningStore,
    build: Builder,
    path: str | Path,
    *,
    selection: Selection | None = None,
    split: Split | None = None,
    bare: bool = False,
) -> ExportReport:
    """Write a dataset from a store's rollouts. The store may be in use.

    The files appear when all rows are written. A side without rows has no file; an older one of its
    name is deleted.

    Args:
        store: The store of the rollouts.
        build: Makes rows, e.g. ``lambda samples, report: sft_rows(samples, options, report)``.
        path: A file that ends in ``.jsonl`` or ``.parquet``.
        selection: Selects rollouts; by default all that succeeded.
        split: Selects the tasks of a second file; by default none.
        bare: Leave out the columns about a row's origin.

    Returns:
        Counts of used and left-out rollouts.

    Raises:
        ConfigError: The suffix is unknown, the folder does not exist, or there is no split and a
            validation file of an earlier one, whose tasks would be in both files.
        MissingDependencyError: It is a Parquet file and pyarrow is not installed.
    """
    split = split or Split()
    files = split.files(Path(path))
    report = ExportReport(rows=dict.fromkeys(files, 0))
    for file in files.values():
        check_format(file)
    _check_split(split, Path(path))
    with ExitStack() as stack:
        writers = {side: stack.enter_context(writing_rows(file)) for side, file in files.items()}
        async for task, samples in read_samples(store, selection or Selection(), report):
            rows = build(samples, report)
            report.tasks += bool(rows)
            side = split.side(task)
            for row in rows:
                writers[side](_without_origin(row) if bare else row)
            report.rows[side] += len(rows)
    for side, file in files.items():
        if any(report.rows.values()) and not report.rows[side]:
            file.unlink(
                missing_ok=True
            )  # an earlier export's, whose tasks may now be on the other side
    return report


def _without_origin(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if name not in _ABOUT}


async def read_samples(
    store: LightningStore, selection: Selection, report: ExportReport
) -> AsyncIterator[tuple[str, list[Sample]]]:
    """Yield each task's key with its samples, in the order in which tasks and rollouts were added.

    Args:
        store: The store of the rollouts.
        selection: Selects rollouts.
        report: Counts all rollouts, and those without a sample.
    """
    tasks: dict[str, dict[str, ReplayConfig | None]] = {}
    async for rollout in each_item(store.query_rollouts, "rollout_id", page_size=_PAGE):
        report.rollouts += 1
        reason = selection.why_not(rollout)
        if reason is None:
            replay = rollout.config.replay
            tasks.setdefault(task_key(rollout.input), {})[rollout.rollout_id] = replay
        else:
            report.leave_out(reason)
    done = 0
    with show_progress("rollouts", sum(map(len, tasks.values()))) as progress:
        for task, rollouts in tasks.items():
            samples: dict[str, Sample] = {}
            limit = anyio.CapacityLimiter(_READERS)
            try:
                async with anyio.create_task_group() as group:
                    for rollout_id, replay in rollouts.items():
                        group.start_soon(
                            _read_sample, store, rollout_id, replay, task, samples, limit, report
                        )
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None  # every read failed in the same way
            yield task, [samples[key] for key in rollouts if key in samples]
            done += len(rollouts)
            progress.update(done)


async def _read_sample(
    store: LightningStore,
    rollout_id: str,
    replay: ReplayConfig | None,
    task: str,
    samples: dict[str, Sample],
    limit: anyio.CapacityLimiter,
    report: ExportReport,
) -> None:
    async with limit:
        try:
            spans = (await store.query_spans(rollout_id, "latest")).items
        except SpansEvictedError:
            report.leave_out(Skip.EVICTED)
            return
    if not spans:
        report.leave_out(Skip.NO_SPANS)
        return
    fork = replay if replay is not None and replay.then == "live" else None
    samples[rollout_id] = Sample(
        rollout_id,
        spans[0].attempt_id,
        task,
        final_reward(spans),
        spans,
        parent_id=fork and fork.rollout_id,
        turn=fork and fork.until,
    )
