"""Copies of client libraries' objects as JSON values.

A span outlives the call, and the agent may change its list of messages after the call. So the value
is copied in the agent's thread; the copy can be processed later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from pydantic import BaseModel

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_ABSENT: Final = frozenset({"NotGiven", "Omit"})  # types of the placeholders for omitted parameters


def to_jsonable(value: Any) -> Any:
    """Return a copy of a value as JSON; values without a JSON form become text.

    Parameters and model fields that were not set are left out.
    """
    kind = cast("type[Any]", type(value))
    if kind in _SCALARS:
        return value
    # Fast path: requests have many values, and most of them are scalars in lists and dicts.
    if kind is list:
        return [item if type(item) in _SCALARS else to_jsonable(item) for item in value]
    if kind is dict or isinstance(value, Mapping):
        return {
            key if type(key) is str else str(key): item
            if type(item) in _SCALARS
            else to_jsonable(item)
            for key, item in cast("Mapping[Any, Any]", value).items()
            if type(item) in _SCALARS or type(item).__name__ not in _ABSENT
        }
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    if isinstance(value, (str, int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_jsonable(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [to_jsonable(item) for item in cast("Iterable[Any]", value)]
    return str(value)
