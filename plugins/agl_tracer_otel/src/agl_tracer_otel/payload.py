"""Copies of client libraries' objects as JSON values.

A span outlives the call, and the agent may change its list of messages after the call. So the value
is copied in the agent's thread; the copy can be processed later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set, ValuesView
from typing import Any, Final, cast

from pydantic import BaseModel

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_ABSENT: Final = frozenset({"NotGiven", "Omit"})  # types of the placeholders for omitted parameters
_CONTAINERS: Final = (Sequence, Set, ValuesView)
"""Reading them changes nothing. Reading an iterator, a stream or a file would take from the agent
what it has not read yet."""


def to_jsonable(value: Any) -> Any:
    """Return a copy of a value as JSON; values without a JSON form become text.

    Parameters and model fields that were not set are left out. The value itself is not changed: an
    iterator is not read.
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
        return _model_to_jsonable(value)
    if isinstance(value, (str, int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_jsonable(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, _CONTAINERS) and not isinstance(value, (bytes, bytearray)):
        return [to_jsonable(item) for item in cast("Sequence[Any]", value)]
    return str(value)


def _model_to_jsonable(model: BaseModel) -> Any:
    try:
        return model.model_dump(mode="json", exclude_unset=True, warnings=False)
    except Exception:  # a field without a JSON form, or a serializer of the agent's that fails
        fields = {**model.__dict__, **(model.__pydantic_extra__ or {})}
        return to_jsonable(
            {name: fields[name] for name in fields if name in model.model_fields_set}
        )
