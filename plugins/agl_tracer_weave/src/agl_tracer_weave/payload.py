"""Copies of clients' responses as JSON values, made in the agent's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from agl_core.genai import Json
from agl_tracer_otel import to_jsonable

__all__ = ["response_to_jsonable"]

_PER_TOKEN: Final = {"content", "refusal"}
_WITHOUT_LOGPROBS: Final[Any] = {"choices": {"__all__": {"logprobs"}}}


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
