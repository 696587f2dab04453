"""The f-string engine of prompt templates, without access to Python and with bounded output.

A template may come from an algorithm, a model that edits prompts, or over HTTP, and it is filled in
processes that hold secrets; ``str.format`` reads any attribute of its arguments.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agl_core.errors import InvalidArgumentError

_MAX_OUTPUT: Final = 16 * 2**20
"""Characters of a filled template."""
_FIELD: Final = re.compile(r"[^.\[\]]*(\[[^\[\]]*\])*")
_WIDE: Final = re.compile(r"\d{5}")
"""A width of five digits."""


def fill_fields(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template of :meth:`str.format`, whose fields may read items and no attributes.

    Raises:
        KeyError: A placeholder has no value.
        InvalidArgumentError: A field reads an attribute, the result is too large, or the template
            is malformed or does not fit its values.
    """
    try:
        return _Formatter().vformat(template, (), values)
    except InvalidArgumentError:
        raise
    except (ValueError, IndexError, TypeError) as error:
        raise InvalidArgumentError(f"the template cannot be filled: {error}") from error


class _Formatter(string.Formatter):
    def __init__(self) -> None:
        self._size = 0

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not _FIELD.fullmatch(field_name):
            raise InvalidArgumentError(
                f"the placeholder {{{field_name:.80}}} reads an attribute; a template may read "
                "values and their items: {name}, {name[key]}"
            )
        return super().get_field(field_name, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        if _WIDE.search(format_spec):
            raise InvalidArgumentError(f"the width in {format_spec[:40]!r} is too large")
        text: str = super().format_field(value, format_spec)
        self._size += len(text)
        if self._size > _MAX_OUTPUT:
            raise InvalidArgumentError("the filled template would be larger than 16 MiB")
        return text
