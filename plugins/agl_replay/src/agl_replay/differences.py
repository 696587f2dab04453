"""The differences between two JSON values, each with its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from agl_core.genai import dumps

__all__ = ["ABSENT", "Difference", "differences"]

_SHOWN: Final = 160
"""Characters of a value that a line shows."""


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = _Absent()
"""The value where there is none."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two values differ.

    Attributes:
        place: The place, e.g. ``messages[1].parts[0].content``.
        then: The recorded value, or :data:`ABSENT`.
        now: The new value, or :data:`ABSENT`.
    """

    place: str
    then: Any
    now: Any

    def lines(self) -> list[str]:
        """Return the difference as lines of text; long text as a unified diff."""
        then, now = self.then, self.now
        if isinstance(then, str) and isinstance(now, str) and "\n" in then + now:
            diff = difflib.unified_diff(then.splitlines(), now.splitlines(), lineterm="", n=1)
            return [f"{self.place}:", *(f"  {line}" for line in list(diff)[2:])]
        return [f"{self.place}:", f"  - {_short(then, now)}", f"  + {_short(now, then)}"]


def differences(then: Any, now: Any, place: str = "") -> Iterator[Difference]:
    """Yield the innermost places at which two JSON values differ, in their order."""
    if type(then) is not type(now) and not _numbers(then, now):
        yield Difference(place or ".", then, now)
    elif isinstance(then, dict):
        before, after = cast("dict[str, Any]", then), cast("dict[str, Any]", now)
        for key in [*before, *(key for key in after if key not in before)]:
            path = f"{place}.{key}" if place else key
            yield from differences(before.get(key, ABSENT), after.get(key, ABSENT), path)
    elif isinstance(then, list):
        first, second = cast("list[Any]", then), cast("list[Any]", now)
        for index in range(max(len(first), len(second))):
            yield from differences(
                first[index] if index < len(first) else ABSENT,
                second[index] if index < len(second) else ABSENT,
                f"{place}[{index}]",
            )
    elif then != now:
        yield Difference(place or ".", then, now)


def _numbers(then: Any, now: Any) -> bool:
    return {type(then), type(now)} <= {int, float}


def _short(value: Any, other: Any) -> str:
    """Return a value on one line: of a long text, the part around its first difference."""
    if value is ABSENT:
        return repr(value)
    text = dumps(value).decode()
    if len(text) <= _SHOWN:
        return text
    start = 0
    if isinstance(value, str) and isinstance(other, str):
        pairs = enumerate(zip(value, other, strict=False))
        start = next((i for i, (a, b) in pairs if a != b), min(len(value), len(other)))
        start = max(0, start - _SHOWN // 4)
    cut = text[start : start + _SHOWN]
    return f"{'…' if start else ''}{cut}{'…' if start + _SHOWN < len(text) else ''}"
