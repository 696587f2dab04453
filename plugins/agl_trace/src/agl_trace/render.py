"""Writes the rows of a trace as lines of text, for terminals of any width and for files.

::

    span                      0                    3.2 s      time    tokens  reward
    agent · planner           ━━━━━━━━━━━━━━━━━━━━━━━━━━    3.20 s
    ├─ chat · qwen            ━━━━━━━━━                     1.10 s   312+24
    ├─ search                          ━━━━━                0.61 s
    │  ✗ TimeoutError: no answer in 0.6 s
    └─ annotation                                      •      0 ms                  1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click
from rich.cells import cell_len, set_cell_size

from agl_trace.rows import SpanRow, TraceView

__all__ = ["Style", "clean_text", "duration", "render_trace", "token_count"]

_PREFIX: Final = "agentlightning."  # of the names of emitted spans
_INDENT: Final = 3
"""Columns, as the guides are wide; the next four are widths, too."""
_TIME: Final = 9  # columns
_TOKENS: Final = 10
_REWARD: Final = 7
_MIN_BAR: Final = 12
_MIN_NAME: Final = 16
_COLORS: Final = {"model": "cyan", "tool": "yellow", "agent": "magenta", "reward": "green"}


@dataclass(frozen=True, slots=True)
class Style:
    """Options of the output.

    Attributes:
        width: Most columns of a line; at least 24.
        color: Whether to use colours.
        unicode: Whether lines may contain characters outside ASCII.
    """

    width: int = 100
    color: bool = False
    unicode: bool = True


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths of columns; 0 leaves a column out."""

    name: int
    bar: int
    tokens: int
    reward: int


def render_trace(view: TraceView, style: Style, *, depth: int | None = None) -> Iterator[str]:
    """Yield the lines of a trace: a header, then one line per row, with notes and errors below it.

    Narrow lines have no bars, narrower ones no tokens and rewards either.

    Args:
        view: The trace.
        style: Options of the output.
        depth: Fold levels deeper than this and show the number of folded spans; None: show all.
    """
    folded = list(_fold(view.rows, depth))
    labels = [_label(row, hidden, style) for row, hidden in folded]
    indents = _indents([row for row, _ in folded], style)
    columns = _layout(view, labels, indents, style)
    yield _head(view, columns, style)
    most = columns.name // 2
    for (row, _), label, indent in zip(folded, labels, indents, strict=True):
        if len(indent) > most:  # too deep for guides: show the depth as a number
            indent = (f"⋯{row.depth} " if style.unicode else f"..{row.depth} ") + indent[-_INDENT:]
        yield _line(row, indent + label, view.summary.seconds, columns, style)
        for note, color in _notes(row):
            yield _paint(_note(indent, row, note, columns, style), style, color)


def duration(seconds: float) -> str:
    """Return a duration as text of at most nine characters."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{round(seconds * 1000, 2):g} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02}m" if hours < 10_000 else f"{hours / 24:.0f} d"


def token_count(count: int) -> str:
    """Return a number of tokens as text of at most five characters."""
    if count < 10_000:
        return str(count)
    for size, letter in ((1e3, "k"), (1e6, "M")):
        if count < 999.5 * size:
            return f"{count / size:.3g}{letter}"
    return f"{count / 1e9:.3g}G"


def _fold(rows: Sequence[SpanRow], depth: int | None) -> Iterator[tuple[SpanRow, int]]:
    """Yield the rows down to a depth, each with the number of folded rows below it."""
    shown: SpanRow | None = None
    hidden = 0
    for row in rows:
        if depth is not None and row.depth > depth:
            hidden += row.kind != "missing"
            continue
        if shown is not None:
            yield shown, hidden
        shown, hidden = row, 0
    if shown is not None:
        yield shown, hidden


def _label(row: SpanRow, hidden: int, style: Style) -> str:
    name = row.operation or row.name.removeprefix(_PREFIX)
    detail = row.model or (row.agent if row.agent != name else None)
    text = f"{name} · {detail}" if detail else name
    if row.auxiliary is not None:
        text += f" ({row.auxiliary})"
    return clean_text(text, style) + (f" (+{hidden})" if hidden else "")


def clean_text(text: str, style: Style) -> str:
    """Replace control characters, which could move the cursor or reverse the text."""
    if not style.unicode:
        text = text.replace(" · ", " - ").encode("ascii", "replace").decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def _indents(rows: Sequence[SpanRow], style: Style) -> list[str]:
    """Return the guides before each name; of guides that are too long only the end."""
    fork, corner, bar = ("├─ ", "└─ ", "│  ") if style.unicode else ("|- ", "`- ", "|  ")
    most = style.width // _INDENT
    above: list[str] = []  # what rows below continue with, per depth
    indents: list[str] = []
    for row in rows:
        del above[row.depth :]
        own = "" if row.depth == 0 else corner if row.last else fork
        indents.append("".join(above[-most:][1:]) + own)
        above.append(" " * _INDENT if row.last or row.depth == 0 else bar)
    return indents


def _layout(
    view: TraceView, labels: Sequence[str], indents: Sequence[str], style: Style
) -> _Columns:
    has_tokens = any(row.input_tokens or row.output_tokens for row in view.rows)
    has_reward = any(row.reward is not None for row in view.rows)
    tokens = _TOKENS if has_tokens else 0
    reward = _REWARD if has_reward else 0
    longest = max(
        (len(indent) + _cells(label) for indent, label in zip(indents, labels, strict=True)),
        default=_MIN_NAME,
    )
    while True:
        fixed = sum(1 + column for column in (_TIME, tokens, reward) if column)
        free = style.width - fixed
        if free >= _MIN_NAME or not (tokens or reward):
            break
        tokens, reward = 0, (reward if tokens else 0)
    name = min(max(longest, _MIN_NAME), free)
    bar = free - 1 - name
    if bar < _MIN_BAR:
        shorter = max(_MIN_NAME, free // 2)
        bar = free - 1 - shorter
        name, bar = (min(name, shorter), bar) if bar >= _MIN_BAR else (min(name, free), 0)
    return _Columns(max(name, 1), bar, tokens, reward)


def _head(view: TraceView, columns: _Columns, style: Style) -> str:
    cells = [_fit("span", columns.name, style)]
    if columns.bar:
        total = duration(view.summary.seconds)
        cells.append("0" + total.rjust(columns.bar - 1))
    cells.append("time".rjust(_TIME))
    if columns.tokens:
        cells.append("tokens".rjust(columns.tokens))
    if columns.reward:
        cells.append("reward".rjust(columns.reward))
    return _paint(" ".join(cells).rstrip(), style, "bright_black")


def _line(row: SpanRow, label: str, total: float, columns: _Columns, style: Style) -> str:
    color = "red" if row.error is not None else _COLORS.get(row.kind)
    if row.kind == "missing":
        color = "bright_black"
    cells = [_paint(_fit(label, columns.name, style), style, color)]
    if columns.bar:
        cells.append(_paint(_bar(row, total, columns.bar, style), style, color))
    cells.append(("" if row.seconds is None else duration(row.seconds)).rjust(_TIME))
    if columns.tokens:
        cells.append(_tokens(row).rjust(columns.tokens))
    if columns.reward:
        cells.append(("" if row.reward is None else _number(row.reward)).rjust(columns.reward))
    return " ".join(cells).rstrip()


def _bar(row: SpanRow, total: float, width: int, style: Style) -> str:
    if row.start is None:
        return " " * width
    scale = width / total if total > 0 else 0.0
    first = min(int(row.start * scale), width - 1)
    if not row.seconds:
        point = "•" if style.unicode else "*"
        return (" " * first + point).ljust(width)
    end = math.ceil((row.start + row.seconds) * scale)
    length = max(1, min(end, width) - first)
    line = "━" if style.unicode else "="
    return (" " * first + line * length).ljust(width)


def _tokens(row: SpanRow) -> str:
    if row.input_tokens is None and row.output_tokens is None:
        return ""
    sides = (
        "?" if count is None else token_count(count)
        for count in (row.input_tokens, row.output_tokens)
    )
    return "+".join(sides)


def _number(value: float) -> str:
    """Return a number as text of at most seven characters, as exact as possible."""
    forms = (f"{value:.{digits}g}" for digits in (4, 3, 2, 1))
    return next(form for form in forms if len(form) <= _REWARD)


def _notes(row: SpanRow) -> Iterator[tuple[str, str | None]]:
    """Yield the notes below a row, each with its colour."""
    if row.rewards:
        yield ", ".join(f"{name} {value:.4g}" for name, value in row.rewards.items()), "green"
    if row.text:
        yield row.text, "bright_black"
    if row.error is not None:
        yield f"✗ {row.error}", "red"


def _note(indent: str, row: SpanRow, note: str, columns: _Columns, style: Style) -> str:
    # Below a row, a fork's guide continues and a corner's ends.
    if style.unicode:
        guides = indent.replace("├─ ", "│  ").replace("└─ ", "   ").replace("⋯", " ")
    else:
        guides = indent.replace("|- ", "|  ").replace("`- ", "   ").replace(".", " ")
    if row.depth and len(guides) > columns.name // 2:
        guides = " " * len(guides)
    text = note if style.unicode else note.replace("✗", "!")
    return _fit(guides + "  " + clean_text(text, style), style.width, style).rstrip()


def _fit(text: str, width: int, style: Style) -> str:
    """Pad or cut text to a number of columns."""
    size = _cells(text)
    if size <= width:
        return text + " " * (width - size)
    mark = "…" if style.unicode else "~"
    return set_cell_size(text, width - 1) + mark


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _paint(text: str, style: Style, color: str | None) -> str:
    return click.style(text, fg=color) if style.color and color else text
