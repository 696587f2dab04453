"""``agl store export``, ``import``, ``copy`` and ``vacuum``."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from agl_cli_kit import open_store, store_options
from agl_core.algorithm import ProgressReporter, show_progress
from agl_core.errors import ConfigError
from agl_core.plugins import build_component
from agl_core.store import LightningStore
from agl_store_kit import Record

__all__ = ["copy_command", "export_command", "import_command", "vacuum_command"]

_TOLD: Final = 1000
"""Records between two updates of the progress."""
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@click.command("export", epilog="Example: agl store export night.jsonl --path runs.db")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--with-keys", is_flag=True, help="Write the API keys in resources, too.")
@store_options
def export_command(
    file: Path, with_keys: bool, backend: str | None, path: str | None, url: str | None
) -> None:
    """Write everything in a store to FILE: .jsonl, or .parquet if pyarrow is installed."""
    from agl_store_http.transfer import export_records, writing

    async def run(store: LightningStore) -> Counter[str]:
        counts: Counter[str] = Counter()
        try:
            total = (await store.query_rollouts(limit=1)).total
            with writing(file) as write, show_progress("rollouts", total) as progress:
                async for record in export_records(store, keys=with_keys):
                    write(record)
                    counts[record.kind] += 1
                    if record.kind == "rollout":
                        progress.update(counts["rollout"])
        finally:
            await store.close()
        return counts

    counts = asyncio.run(run(open_store(backend, path, url, reading=True)))
    listed = ", ".join(f"{counts[kind]} {kind}" for kind in counts) or "nothing"
    click.echo(f"{file}: {listed}")


@click.command("import", epilog="Example: agl store import night.jsonl --path other.db")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@store_options
def import_command(file: Path, backend: str | None, path: str | None, url: str | None) -> None:
    """Take what `agl store export` wrote to FILE into a store.

    A SQLite file has it as it was, and skips what it has already. Any other store gets the finished
    rollouts, under new ids and with new times.
    """
    from agl_store_http.transfer import count_records, import_records, read_records

    total = count_records(file)

    def told(records: Iterator[Record], progress: ProgressReporter) -> Iterator[Record]:
        for number, record in enumerate(records, 1):
            yield record
            if number % _TOLD == 0 or number == total:
                progress.update(number)

    async def run(store: LightningStore) -> int:
        try:
            with show_progress("records", total) as progress:
                return await import_records(store, told(read_records(file), progress))
        finally:
            await store.close()

    taken = asyncio.run(run(open_store(backend, path, url)))
    click.echo(f"{file}: {taken} records were taken in")


@click.command("copy", epilog="Example: agl store copy runs.db postgresql://agl@db.example/agl")
@click.argument("source")
@click.argument("target")
def copy_command(source: str, target: str) -> None:
    """Copy everything from one store to another, under the same ids.

    SOURCE and TARGET are files (SQLite) or databases (postgresql://); SOURCE may be a store server
    (http://), too. Stop what writes to SOURCE first. After an interruption, copy again:
    what TARGET has is skipped.
    """
    from agl_store_http.transfer import copy_records

    async def run() -> Counter[str]:
        from_store = _store_at(source, "SOURCE", reading=True)
        to_store = _store_at(target, "TARGET")
        try:
            total = (await from_store.query_rollouts(limit=1)).total
            with show_progress("rollouts", total) as progress:
                return await copy_records(from_store, to_store, progress.update)
        finally:
            await to_store.close()
            await from_store.close()

    counts = asyncio.run(run())
    new = counts.pop("new", 0)
    listed = ", ".join(f"{counts[kind]} {kind}" for kind in counts) or "nothing"
    click.echo(f"{source} has {listed}; {new} records were copied, the others were in {target}")


def _store_at(place: str, what: str, *, reading: bool = False) -> LightningStore:
    """Return the store in a file or at an address."""
    scheme = place.partition("://")[0]
    if scheme in ("http", "https"):
        return open_store(None, None, place, reading=reading)
    if scheme in ("postgresql", "postgres"):
        return build_component("store", {"type": "postgres", "uri": place}, path=what)
    return open_store("sqlite", place, None, reading=reading)


@click.command("vacuum", epilog="Example: agl store vacuum --path runs.db --keep 7d")
@click.option("--keep", metavar="TIME", help="Drop what ended longer ago: 30m, 12h, 7d, 4w.")
@click.option("--keep-last", type=click.IntRange(min=0), help="Keep so many of the last rollouts.")
@store_options
def vacuum_command(
    keep: str | None, keep_last: int | None, backend: str | None, path: str | None, url: str | None
) -> None:
    """Drop old finished rollouts with their spans, and give the disk space back.

    With both options a rollout is dropped if neither keeps it; resources and runs stay. Without
    any, only space is given back.
    """
    kept = None if keep is None else _duration(keep)
    store = open_store(backend, path, url, must_exist=True)
    vacuum = getattr(store, "vacuum", None)
    if vacuum is None:
        raise ConfigError(
            f"{type(store).__name__} cannot be vacuumed; name the file: --backend sqlite --path …"
        )

    async def run() -> int:
        try:
            before = None if kept is None else await store.now() - kept
            return await vacuum(ended_before=before, keep_last=keep_last)
        finally:
            await store.close()

    click.echo(f"{asyncio.run(run())} rollouts were dropped")


def _duration(text: str) -> float:
    """Return a length of time in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if found is None:
        raise ConfigError(
            f"{text!r} is not a length of time; write 30m, 12h, 7d or 4w", path="--keep"
        )
    return float(found[1]) * _SECONDS[found[2]]
