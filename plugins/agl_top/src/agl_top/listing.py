"""Prints a list once, or again when the store changes: for people, for pipes, as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from agl_cli_kit import in_terminal, print_json, print_table
from agl_core.errors import AglError, error_message
from agl_core.store import LightningStore
from agl_top.columns import draw_table
from agl_top.watching import watch

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = 20
"""Items that a person looks at."""
_STREAMED = 1000
"""Items in which changes are found for a pipe; the store reads them in some milliseconds."""
_SECONDS = 2.0
"""Between two reads: a person does not see changes sooner."""


@dataclass(frozen=True)
class Listing:
    """A list that was read from a store."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    items: Sequence[dict[str, Any]]
    """The same as JSON; each has the key that ``key`` names."""
    key: str
    total: int | None
    """Number of matches; None if there are more than ``rows``, which are not counted."""

    @property
    def is_cut(self) -> bool:
        """Whether there are more matches than rows."""
        return self.total is None or self.total > len(self.rows)


Read = Callable[[LightningStore, int], Awaitable[Listing]]
"""Reads a list of at most so many items."""


def list_options(command: F) -> F:
    """Add the options of every list."""
    options = [
        click.option(
            "--limit",
            type=click.IntRange(1),
            help=f"Longest list; by default {_SHOWN}, and {_STREAMED} watched in a pipe.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--watch",
            "watches",
            is_flag=True,
            help="Go on until Ctrl+C: a list that follows the store, or, in a pipe, a line for "
            "each item that is new or changed.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def show(
    store: LightningStore, read: Read, limit: int | None, *, as_json: bool, watches: bool
) -> int:
    """Print what ``read`` returns; return the exit code."""
    try:
        if not watches:
            _print(asyncio.run(_once(store, read, limit or _SHOWN)), as_json)
        elif in_terminal() and not as_json:
            asyncio.run(_follow(store, read, limit or _SHOWN))
        else:
            asyncio.run(_stream(store, read, limit or _STREAMED, as_json))
    except KeyboardInterrupt:
        if not watches:
            raise
    return 0


async def _once(store: LightningStore, read: Read, limit: int) -> Listing:
    try:
        return await read(store, limit)
    finally:
        await store.close()


def _print(found: Listing, as_json: bool) -> None:
    if as_json:
        print_json(found.items)
        return
    print_table(found.columns, found.rows)
    if found.total is None:
        click.echo("there are more: raise --limit", err=True)
    elif (left := found.total - len(found.rows)) > 0:
        click.echo(f"{left} more: raise --limit", err=True)


async def _follow(store: LightningStore, read: Read, limit: int) -> None:
    """Redraw the list in a terminal."""

    async def draw() -> None:
        try:
            found = await read(store, limit)
        except AglError as error:  # a server that is away may return
            live.update(Text(f"{error_message(error)}; trying again"), refresh=True)
            return
        width, height = live.console.size
        table = draw_table(found.columns, found.rows, width=width, height=height - 1)
        live.update(table, refresh=True)

    try:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            await watch(store, draw, _SECONDS)
    finally:
        await store.close()


async def _stream(store: LightningStore, read: Read, limit: int, as_json: bool) -> None:
    """Print each item that is new or has changed, one per line."""
    known: dict[str, int] = {}
    """Hashes of the items told so far, also of those that have left the list: one may return."""
    problem = ""
    is_cut = False

    async def tell() -> None:
        nonlocal problem, is_cut
        try:
            found = await read(store, limit)
        except AglError as error:
            if problem != (problem := error_message(error)):
                click.echo(f"agl: {problem}; trying again", err=True)
            return
        problem = ""
        if found.is_cut and not is_cut:
            click.echo(f"agl: only the first {limit} are watched: raise --limit", err=True)
        is_cut = found.is_cut
        for row, item in zip(found.rows, found.items, strict=True):
            key = str(item[found.key])
            text = json.dumps(item, default=str)
            if known.get(key) != hash(text):
                known[key] = hash(text)
                click.echo(text if as_json else "  ".join(row))

    try:
        await watch(store, tell, _SECONDS)
    finally:
        await store.close()
