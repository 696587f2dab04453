"""Prints results: rich tables in a terminal, plain lines or JSON elsewhere."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, cast

import click

_STYLES = {
    "ok": "green",
    "broken": "red",
    "conflict": "yellow",
    "incompatible": "yellow",
    "disabled": "dim",
    "not installed": "dim",
}


def in_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print one JSON document, indented in a terminal and on one line elsewhere.

    A number that is not finite is printed as null, since JSON has no NaN and no infinity.
    """
    click.echo(json.dumps(_finite(value), indent=2 if in_terminal() else None, default=str))


def _finite(value: Any) -> Any:
    """Return a value with None in place of the numbers in it that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in cast("Sequence[Any]", value)]
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table; a cell that is a status is coloured.

    Outside a terminal the columns are padded with blanks and never cut, so that ``grep`` and
    ``awk`` can read them.
    """
    if in_terminal():
        _print_rich(columns, rows, title)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows) if any(columns) else rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None,
        title_justify="left",
        box=None,
        header_style="bold",
        show_header=any(columns),
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)
