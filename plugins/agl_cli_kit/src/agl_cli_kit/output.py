"""Prints results: rich tables in a terminal, plain lines or JSON elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

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
    """Print one JSON document, indented in a terminal and on one line elsewhere."""
    click.echo(json.dumps(value, indent=2 if in_terminal() else None, default=str))


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
