"""Copies of client libraries' requests and responses as JSON values.

A span outlives the call, and the agent may change its list of messages after the call. So both
functions copy the value in the agent's thread; the copy can be processed later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from agl_core.genai import Json

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_ABSENT: Final = frozenset({"NotGiven", "Omit"})  # types of the placeholders for omitted parameters
_PER_TOKEN: Final = {"content", "refusal"}
_WITHOUT_LOGPROBS: Final[Any] = {"choices": {"__all__": {"logprobs"}}}


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


def response_to_jsonable(response: Any) -> Any:
    """Return a copy of a client's response as JSON, with log-probabilities as text.

    Log-probabilities are the largest part of a chat response, and converting them to Python objects
    would be most of the cost of its span. So a choice has ``logprobs.content`` and
    ``logprobs.refusal``, both a JSON text with one entry per token; other log-probabilities stay in
    ``logprobs``.
    """
    choices: Any = getattr(response, "choices", None)
    if not isinstance(response, BaseModel) or not isinstance(choices, list):
        return to_jsonable(response)
    all_logprobs = [getattr(choice, "logprobs", None) for choice in cast("list[Any]", choices)]
    if not any(isinstance(logprobs, BaseModel) for logprobs in all_logprobs):
        return to_jsonable(response)
    value = response.model_dump(
        mode="json", exclude_unset=True, warnings=False, exclude=_WITHOUT_LOGPROBS
    )
    for choice, logprobs in zip(cast("list[Json]", value["choices"]), all_logprobs, strict=True):
        if isinstance(logprobs, BaseModel):
            choice |= _texts(logprobs)
    return value


def _texts(logprobs: BaseModel) -> Json:
    rest = logprobs.model_dump(mode="json", exclude_unset=True, warnings=False, exclude=_PER_TOKEN)
    texts: Json = {"logprobs": rest} if rest else {}
    for part in _PER_TOKEN:
        if getattr(logprobs, part, None) is not None:
            texts[f"logprobs.{part}"] = _text(logprobs, part)
    return texts


def _text(logprobs: BaseModel, part: str) -> str:
    entries: list[Any] = getattr(logprobs, part)
    try:
        # Faster than the model's own serializer. It fails for alternative tokens (models nested in
        # the entries) and for entries of another shape, which clients do not turn into models.
        return to_json([_fields(entry) for entry in entries], inf_nan_mode="null").decode()
    except (PydanticSerializationError, AttributeError):
        text = logprobs.model_dump_json(include={part}, warnings=False)
        return text[len(f'{{"{part}":') : -1]


def _fields(entry: BaseModel) -> Mapping[str, Any]:
    more = entry.__pydantic_extra__
    return {**entry.__dict__, **more} if more else entry.__dict__
