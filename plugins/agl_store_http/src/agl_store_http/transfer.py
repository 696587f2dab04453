"""Export and import: the whole content of a store as records for another store.

A file has one line of JSON per record (``.jsonl``), or is a Parquet file with two columns
(``.parquet``, with pyarrow).
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Protocol, get_args

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from agl_core.errors import (
    AglError,
    ConfigError,
    InvalidArgumentError,
    MissingDependencyError,
    SpansEvictedError,
)
from agl_core.store import EncodedSpan, LightningStore, each_item, encode_span
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Span,
    becomes_latest,
)
from agl_store_http.client.client import LightningStoreClient
from agl_store_http.secrets import MASK, has_mask, masked
from agl_store_kit import Record, RecordKind, Restorable, settle_rewards

__all__ = [
    "copy_records",
    "count_records",
    "export_records",
    "import_records",
    "read_records",
    "writing",
]

logger = logging.getLogger(__name__)

_KINDS: Final = get_args(RecordKind)
_PAGE: Final = 200
"""Rollouts per query: their spans take far longer."""
_BATCH: Final = 1000
"""Records per transaction; after an interrupt at most one batch is written again."""
_BATCH_BYTES: Final = 16 * 1024 * 1024
"""A batch is held in memory, and spans may be megabytes long."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NEVER_QUEUED: Final = RolloutConfig(infrastructure_retries=0)
"""No time limit and no retry, so that no status of an attempt puts its rollout in the queue."""


# -- stores ----------------------------------------------------------------------------------------


async def export_records(store: LightningStore, *, keys: bool = False) -> AsyncIterator[Record]:
    """Yield all records of a store, read page by page; the store may be in use.

    Rollouts whose spans the store evicted come without them, and a warning counts these.

    Args:
        store: The store.
        keys: Keep the API keys in resources; else they are masked.

    Raises:
        ConfigError: The keys are to be kept, and the server of the store does not show them.
    """
    is_remote = isinstance(store, LightningStoreClient)
    async for snapshot in each_item(store.query_resources, "resources_id", page_size=_PAGE):
        json = _json(snapshot)
        if keys and is_remote and has_mask(from_json(json)):
            raise ConfigError(
                f"the server shows the API keys of {snapshot.resources_id} as {MASK}: use a token "
                "of scope algorithm or admin, or copy the store's file"
            )
        yield Record("resources", json if keys else to_json(masked(from_json(json))))
    async for worker in each_item(store.query_workers, "worker_id", page_size=_PAGE):
        yield Record("worker", _json(worker))
    evicted = 0
    async for rollout in each_item(store.query_rollouts, "rollout_id", page_size=_PAGE):
        yield Record("rollout", _json(rollout, without="attempt"))
        attempt_ids: set[str] = set()
        for attempt in await store.query_attempts(rollout.rollout_id):
            attempt_ids.add(attempt.attempt_id)
            yield Record("attempt", _json(attempt))
        try:
            spans = await store.query_encoded_spans(rollout.rollout_id, sort_by=None)
        except SpansEvictedError:
            evicted += 1
            continue
        for span in spans:
            if span.attempt_id in attempt_ids:  # an attempt may have begun since
                yield Record("span", span.payload)
    if evicted:
        logger.warning("%d rollouts are without their spans, which the store evicted", evicted)


def _json(model: BaseModel, without: str = "") -> bytes:
    return to_json(model.model_dump(exclude={without}), inf_nan_mode="constants")


async def import_records(store: LightningStore, records: Iterable[Record]) -> int:
    """Import records into a store.

    A :class:`Restorable` store gets them unchanged and skips those that it already has. Any other
    store gets what the contract can express: snapshots under their ids, finished rollouts with
    their attempts and spans under new ids and with new times. None of them enters the queue, so a
    rollout without attempts gets one. Unfinished rollouts are left out in that case: a runner may
    still work on them.

    Returns:
        Number of imported records.

    Raises:
        InvalidArgumentError: A record is malformed, or belongs to a missing record.
    """
    taken = 0
    if isinstance(store, Restorable):
        for batch in _batches(records):
            taken += await store.restore(batch)
        return taken
    replay = _Replay(store)
    for record in records:
        taken += await replay.take(record)
    await replay.finish()
    return taken


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.json)
        if len(batch) == _BATCH or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def copy_records(
    source: LightningStore, target: LightningStore, progress: Callable[[int], None]
) -> Counter[str]:
    """Copy everything of a store into another one, unchanged, keys included.

    What the target has already is skipped, so an interrupted copy is finished by copying again.

    Args:
        source: The store to read; no process should write to it meanwhile.
        target: The store to write to.
        progress: Gets the number of rollouts copied so far.

    Returns:
        How many records of each kind the source has, and under ``new`` how many were copied now.

    Raises:
        ConfigError: The target cannot hold records under their ids, or the source does not show
            its API keys.
        InvalidArgumentError: A record is malformed.
    """
    if not isinstance(target, Restorable):
        raise ConfigError(f"{type(target).__name__} cannot hold records of another store unchanged")
    counts: Counter[str] = Counter()
    batch: list[Record] = []
    size = 0
    async for record in export_records(source, keys=True):
        counts[record.kind] += 1
        batch.append(record)
        size += len(record.json)
        if len(batch) == _BATCH or size > _BATCH_BYTES:
            counts["new"] += await target.restore(batch)
            batch, size = [], 0
            progress(counts["rollout"])
    if batch:
        counts["new"] += await target.restore(batch)
    progress(counts["rollout"])
    return counts


class _Replay:
    """Repeats the calls on a store that lead to the records of another store."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._source: Rollout | None = None
        self._rollout_id = ""
        self._attempts: dict[str, tuple[str, Attempt]] = {}
        self._spans: list[Span] = []
        self._newest: ResourcesUpdate | None = None

    async def take(self, record: Record) -> bool:
        if record.kind == "resources":
            snapshot = ResourcesUpdate.model_validate_json(record.json)
            await self._put_older(snapshot)
            return True
        await self._put_newest()
        if record.kind == "rollout":
            await self.finish()
            self._source = Rollout.model_validate_json(record.json)
            return self._source.status in FINISHED_STATUSES
        if self._source is None or self._source.status not in FINISHED_STATUSES:
            return False
        if record.kind == "attempt":
            await self._begin(Attempt.model_validate_json(record.json))
            return True
        if record.kind == "span":
            span = Span.model_validate_json(record.json)
            if span.attempt_id not in self._attempts:
                raise InvalidArgumentError(f"span {span.span_id} belongs to no attempt before it")
            attempt_id = self._attempts[span.attempt_id][0]
            ids = {"rollout_id": self._rollout_id, "attempt_id": attempt_id}
            self._spans.append(span.model_copy(update=ids))
            return True
        return False

    async def _begin(self, attempt: Attempt) -> None:
        if not self._attempts:
            started = await self._start()
        else:
            started = await self._store.start_attempt(self._rollout_id)
        self._attempts[attempt.attempt_id] = (started.attempt.attempt_id, attempt)

    async def _start(self) -> AttemptedRollout:
        """Start the rollout, outside the queue and not to be retried: runners may wait for work."""
        source = self._source
        assert source is not None
        started = await self._store.start_rollout(
            source.input, source.mode, source.resources_id, _NEVER_QUEUED, source.metadata
        )
        self._rollout_id = started.rollout_id
        return started

    async def finish(self) -> None:
        """Write what is held back: the latest resources, and the last rollout's final status."""
        await self._put_newest()
        source = self._source
        if source is not None and source.status in FINISHED_STATUSES:
            if not self._attempts:  # it was cancelled while it was queued
                await self._start()
            if self._spans:
                await self._add([encode_span(span) for span in self._spans])
            for attempt_id, was in self._attempts.values():
                await self._store.update_attempt(
                    self._rollout_id, attempt_id, status=was.status, metadata=was.metadata
                )
            await self._store.update_rollout(
                self._rollout_id, status=source.status, config=source.config
            )
        self._source, self._rollout_id, self._attempts, self._spans = None, "", {}, []

    async def _put_older(self, snapshot: ResourcesUpdate) -> None:
        """Write resources, and hold back those that changed last: they are to be the latest."""
        newest = self._newest
        if not becomes_latest(snapshot.resources):
            await self._put(snapshot)
        elif newest is None or snapshot.update_time >= newest.update_time:
            self._newest = snapshot
            await self._put(newest)
        else:
            await self._put(snapshot)

    async def _put_newest(self) -> None:
        newest, self._newest = self._newest, None
        await self._put(newest)

    async def _put(self, snapshot: ResourcesUpdate | None) -> None:
        if snapshot is not None:
            await self._store.update_resources(snapshot.resources_id, snapshot.resources)

    async def _add(self, spans: list[EncodedSpan]) -> None:
        if isinstance(self._store, LightningStoreClient):
            await self._store.import_encoded_spans(spans)
        else:
            settle_rewards(spans)
            await self._store.add_encoded_spans(spans)


# -- files -----------------------------------------------------------------------------------------


class RecordWriter(Protocol):
    """Writes records to a file, one after the other."""

    def __call__(self, record: Record) -> None: ...


@contextmanager
def writing(path: Path) -> Generator[RecordWriter]:
    """Open a file for records; its suffix sets the format. An error in the context discards it.

    Raises:
        AglError: The disk is full.
    """
    unfinished = path.with_name(path.name + ".part")
    # A file that somebody else put there may be a link to another.
    unfinished.unlink(missing_ok=True)
    file = unfinished.open("xb")
    try:
        with file, _records(file, path.suffix) as write:
            yield write
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink()
        if isinstance(error, OSError) and error.errno in _FULL:
            raise AglError(f"{path}: the disk is full") from error
        raise


@contextmanager
def _records(file: IO[bytes], suffix: str) -> Generator[RecordWriter]:
    if suffix != ".parquet":
        yield lambda record: _write_line(file, record)
        return
    pyarrow, parquet = _load_parquet()
    schema = pyarrow.schema([("kind", pyarrow.string()), ("record", pyarrow.string())])
    rows: list[Record] = []

    def flush(writer: Any) -> None:
        columns = [[row.kind for row in rows], [row.json.decode() for row in rows]]
        writer.write_table(pyarrow.table(columns, schema=schema))
        rows.clear()

    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:

        def write(record: Record) -> None:
            rows.append(record)
            if len(rows) == _BATCH:
                flush(writer)

        yield write
        flush(writer)


def _write_line(file: IO[bytes], record: Record) -> None:
    file.write(b'{"kind":"%b","record":%b}\n' % (record.kind.encode(), record.json))


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file.

    Raises:
        InvalidArgumentError: A line is not a record; the message has its number.
    """
    if path.suffix == ".parquet":
        _, parquet = _load_parquet()
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                yield Record(row["kind"], row["record"].encode())
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                parsed = from_json(line)
                kind, value = parsed["kind"], parsed["record"]
            except (ValueError, TypeError, KeyError) as error:
                raise InvalidArgumentError(f"{path}, line {number} is not a record") from error
            if kind not in _KINDS:
                raise InvalidArgumentError(f"{path}, line {number}: unknown kind {kind!r}")
            head = b'{"kind":"%b","record":' % kind.encode()
            written_by_us = line.startswith(head) and line.endswith(b"}\n")
            json = line[len(head) : -2] if written_by_us else to_json(value)
            yield Record(kind, json)


def count_records(path: Path) -> int:
    """Return the number of records in a file, without reading them."""
    if path.suffix == ".parquet":
        _, parquet = _load_parquet()
        return parquet.ParquetFile(path).metadata.num_rows
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _load_parquet() -> tuple[Any, Any]:
    """Return the modules ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        MissingDependencyError: They are not installed.
    """
    import importlib

    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError("Parquet files", pip="pyarrow") from error
