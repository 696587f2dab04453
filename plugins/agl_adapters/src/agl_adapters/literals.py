"""Reads values that spans hold as text, and writes values as text."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

__all__ = ["as_list", "as_text", "parse_json", "parse_literal"]

_UNREADABLE: Final = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
"""What :func:`ast.literal_eval` raises for text that it cannot read, which JSON's errors are of."""


def parse_literal(value: Any) -> Any:
    """Parse text that holds a list or mapping, in JSON or in Python's notation.

    LiteLLM writes some attributes as the ``str`` of a Python object. Any other value, and text
    that does not parse, is returned unchanged.
    """
    return _parsed(value, "[{(", (json.loads, ast.literal_eval))


def parse_json(value: Any) -> Any:
    """Parse text that holds a list or an object in JSON; return any other value unchanged.

    For attributes whose text may be the answer of a model, which may be Python.
    """
    return _parsed(value, "[{", (json.loads,))


def _parsed(value: Any, opening: str, parsers: Sequence[Callable[[str], Any]]) -> Any:
    if not isinstance(value, str):
        return value
    first = value.lstrip()[:1]
    if not first or first not in opening:
        return value
    for parse in parsers:
        with suppress(*_UNREADABLE):
            return parse(value)
    return value


def as_list(value: Any) -> Sequence[Any]:
    """Return a list or a tuple, parsed if it is text; empty for any other value."""
    value = parse_literal(value)
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else []


def as_text(value: Any) -> str:
    """Return text unchanged, None as ``""``, and any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
