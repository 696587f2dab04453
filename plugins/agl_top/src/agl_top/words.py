"""Numbers, times and foreign text as short words for a terminal."""

from __future__ import annotations

import json
from typing import Any, Final

NONE: Final = "-"
_BARS: Final = "▁▂▃▄▅▆▇█"


def seconds(value: float | None) -> str:
    """Return a duration: ``0.42 s``, ``3 m 05 s``."""
    if value is None:
        return NONE
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def ago(at: float | None, now: float) -> str:
    """Return how long ago a time was, in one unit."""
    if at is None:
        return NONE
    passed = max(0, int(now - at))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if passed >= size:
            return f"{passed // size} {unit} ago"
    return f"{passed} s ago"


def reward(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(value: Any, length: int = 200) -> str:
    """Return a value as one line that a terminal may print.

    Models and tools wrote the text: control characters could move the cursor or reverse the line.
    """
    text = value if isinstance(value, str) else _flat(value)
    text = " ".join(text[: 4 * length].split())
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _flat(value: Any) -> str:
    """Return the fields of a task without the marks of JSON; other values as JSON."""
    if isinstance(value, dict):
        fields: dict[Any, Any] = value
        return ", ".join(f"{key}: {each}" for key, each in fields.items())
    return json.dumps(value, ensure_ascii=False, default=str)


def spark(values: list[float], *, unicode: bool = True) -> str:
    """Return a line of bars, the lowest value as the lowest bar.

    Args:
        values: The values, in order.
        unicode: Whether the terminal prints block characters; else digits from 0 to 9.
    """
    bars = _BARS if unicode else "0123456789"
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high == low:
        return bars[len(bars) // 2] * len(values)
    return "".join(bars[int((each - low) / (high - low) * (len(bars) - 1))] for each in values)
