"""An extension of griffe: turns the markup of docstrings into Markdown for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe


def to_markdown(text: str) -> str:
    """Turn roles (``:class:`X```) into code, and literal blocks (``::``) into code blocks."""
    text = re.sub(r":[a-z]+:`~?(?:[\w.]*\.)?(\w+)(?:\(\))?`", r"`\1`", text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites each docstring when it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)
