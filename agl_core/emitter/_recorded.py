"""Recorded operations: their arguments and results as JSON, so that a replay can answer them.

::

    @operation(record=True)
    def search(query: str) -> list[str]: ...
"""

from __future__ import annotations

import builtins
import inspect
import logging
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NoReturn, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agl_core import semconv
from agl_core.errors import error_message
from agl_core.genai import Json, dumps, loads, without_secrets
from agl_core.otel._attributes import safe_text
from agl_core.types import SpanRecordingContext

logger = logging.getLogger(__name__)

Answerer = Callable[[str, Json], Json | None]
"""Called with an operation's name and arguments; returns the record that answers it, or None to run
it. The record has ``result`` or ``error``."""

_answerer: ContextVar[Answerer | None] = ContextVar("agl_answerer", default=None)
_OWNERS: Final = ("self", "cls")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


class RecordedError(RuntimeError):
    """The error of a recorded operation, whose own type cannot be made in a replay."""


@contextmanager
def answering_operations(answer: Answerer) -> Generator[None]:
    """Let a replay answer the recorded operations of this context."""
    token = _answerer.set(answer)
    try:
        yield
    finally:
        _answerer.reset(token)


def record_calls(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that calls ``fn``, or repeats a recorded call, and records it in a span.

    It takes the span's recorder, the arguments by name, and the call's own args and kwargs.
    """
    codec = _codec(fn)

    @contextmanager
    def recording(recorder: SpanRecordingContext, inputs: Json) -> Generator[Json]:
        answer, arguments = _answerer.get(), _arguments(inputs)
        found = None if answer is None else answer(name, arguments)
        record: Json = {"arguments": arguments} | (found or {}) | {"arguments": arguments}
        try:
            yield record
        except Exception as error:
            record.setdefault("error", _error(error))
            raise
        finally:
            text = dumps(without_secrets(record)).decode()
            recorder.record_attributes({semconv.RECORDED_OPERATION: text})

    def kept(record: Json, result: Any) -> Any:
        try:
            record["result"] = codec.dump_python(
                result,
                mode="json",
                by_alias=True,  # models are validated by their aliases
                warnings=False,
            )
        except (ValueError, RecursionError) as error:
            logger.warning("the result of %s is not recorded: %s", name, error)
        return result

    def repeated(record: Json) -> Any:
        if "error" in record:
            _raise(record["error"])
        try:
            return codec.validate_python(record["result"])
        except ValidationError:  # it returned something else than it declares
            return record["result"]

    if inspect.iscoroutinefunction(fn):

        async def call_async(
            recorder: SpanRecordingContext, inputs: Json, args: Any, kwargs: Any
        ) -> Any:
            with recording(recorder, inputs) as record:
                if len(record) > 1:
                    return repeated(record)
                return kept(record, await fn(*args, **kwargs))

        return call_async

    def call(recorder: SpanRecordingContext, inputs: Json, args: Any, kwargs: Any) -> Any:
        with recording(recorder, inputs) as record:
            if len(record) > 1:
                return repeated(record)
            return kept(record, fn(*args, **kwargs))

    return call


def _codec(fn: Callable[..., Any]) -> TypeAdapter[Any]:
    """Return what writes and reads results, by the function's annotation if it can be read."""
    try:
        return TypeAdapter(get_type_hints(fn).get("return", Any))
    except Exception:  # names under TYPE_CHECKING, types that pydantic does not know
        return TypeAdapter(Any)


def _arguments(inputs: Json) -> Json:
    """Return arguments as plain JSON; objects as text, sets in a fixed order."""
    kept = {key: value for key, value in inputs.items() if key not in _OWNERS}
    return cast("Json", loads(dumps(without_secrets(_plain(kept)))))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("Json", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, cast("set[Any]", value)), key=repr)
    try:
        return TypeAdapter(Any).dump_python(value, mode="json")
    except (ValueError, RecursionError):
        return _ADDRESS.sub("", safe_text(value))


def _error(error: Exception) -> Json:
    kind = type(error)
    return {"type": f"{kind.__module__}.{kind.__qualname__}", "message": error_message(error)}


def _raise(error: Json) -> NoReturn:
    """Raise a recorded error; as a :class:`RecordedError` unless it is one of Python's own."""
    module, _, name = error["type"].rpartition(".")
    kind = getattr(builtins, name, None) if module == "builtins" else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            made = kind(error["message"])
        except TypeError:  # its constructor wants more
            pass
        else:
            raise made
    raise RecordedError(f"{error['type']}: {error['message']}")
