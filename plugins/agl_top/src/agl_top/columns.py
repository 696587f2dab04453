"""Fits a list into the width of a terminal: short columns stay whole, long ones share the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

__all__ = ["draw_table", "fit_widths"]

_SHORT: Final = 16
"""Longest column that is never cut: ids, statuses, numbers and durations are at most as long."""
_GAP: Final = 2
"""Columns between two columns."""


def draw_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, height: int
) -> Table:
    """Return a table of at most ``height`` lines, each of at most ``width`` columns.

    Args:
        columns: Names of the columns.
        rows: Their cells; those that do not fit into the height are left out.
        width: Columns of the terminal.
        height: Lines of the terminal.
    """
    shown = rows[: max(1, height - 1)]
    wanted = [max(map(cell_len, column)) for column in zip(columns, *shown, strict=True)]
    table = Table(box=None, header_style="bold", padding=(0, _GAP, 0, 0), pad_edge=False)
    fitted = fit_widths(wanted, width - _GAP * (len(columns) - 1))
    for name, size in zip(columns, fitted, strict=True):
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=size)
    for row in shown:
        table.add_row(*map(Text, row))
    return table


def fit_widths(wanted: Sequence[int], room: int) -> list[int]:
    """Return a width for each column: the widest columns shrink first.

    Args:
        wanted: The width of the longest cell of each column.
        room: Sum that the widths may have.
    """
    most = max(wanted, default=0)
    while most > _SHORT and sum(min(size, most) for size in wanted) > room:
        most -= 1
    fitted = [min(size, most) for size in wanted]
    spare = room - sum(fitted)
    for index, size in enumerate(wanted):  # columns of one width do not divide the room exactly
        if spare > 0 and size > fitted[index]:
            fitted[index] += 1
            spare -= 1
    while sum(fitted) > room and max(fitted) > 1:  # a very narrow terminal
        fitted[fitted.index(max(fitted))] -= 1
    return fitted
