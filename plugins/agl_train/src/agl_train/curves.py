"""The values of a metric as one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-=*#"
_WIDEST: Final = 40
"""Columns of a curve: with its labels it fits into 80."""


def curve(values: Sequence[float], encoding: str | None) -> str:
    """Return bars from the first step to the last, then the first and the best value.

    Args:
        values: The values, one per step.
        encoding: Encoding of the output; without Unicode the bars are ASCII.

    Returns:
        The line; empty for fewer than two finite values.
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    bars = _BARS if (encoding or "").lower().startswith("utf") else _PLAIN_BARS
    low, high = min(known), max(known)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    line = "".join(bars[round((value - low) * scale)] for value in _binned(known))
    return f"{line}  {known[0]:.4g} to {known[-1]:.4g} in {len(known)} steps, max {high:.4g}"


def _binned(values: Sequence[float]) -> list[float]:
    """Return at most as many means of neighbours as the line has room for."""
    count = min(len(values), _WIDEST)
    edges = [len(values) * index // count for index in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
