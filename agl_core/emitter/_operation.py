"""Operations: spans around a part of an agent's work, with its inputs and outputs.

::

    @operation
    def search(query: str) -> list[str]: ...

    with operation(name="plan") as step:
        step.set_input(goal)
        step.set_output(plan := think(goal))
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from agl_core import semconv
from agl_core.emitter._recorded import record_calls
from agl_core.emitter._tracer import tracer_for
from agl_core.genai import without_secrets
from agl_core.otel._attributes import flatten_attributes, safe_text, sanitize_attributes
from agl_core.types import Attributes, SpanCoreFields, SpanRecordingContext

P = ParamSpec("P")
R = TypeVar("R")


@overload
def operation(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def operation(
    fn: None = None,
    /,
    *,
    propagate: bool = True,
    name: str | None = None,
    record: bool = False,
    **attributes: Any,
) -> OperationContext: ...
def operation(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    propagate: bool = True,
    name: str | None = None,
    record: bool = False,
    **attributes: Any,
) -> Any:
    """Record a span around a function's calls or around a ``with`` block.

    As a decorator, bare or called, it records every call of a function or coroutine function with
    its arguments and its result; the operation is named after the function. The span of a generator
    function covers the creation of the generator, not its iteration. As a context manager it
    records the block. The tracer is looked up when the operation runs.

    Args:
        fn: The function, when used as a bare decorator.
        propagate: Record the spans; if False, they are dropped and no tracer is needed.
        name: Name of the operation.
        record: Record the arguments and the result of a function as JSON, so that a replay returns
            the recorded result instead of calling the function (tools, searches, anything outside
            the process). The result is JSON, or what the function's return annotation names and
            pydantic can read; a result that is neither is not recorded, with a warning. Values
            whose names are those of secrets are redacted.
        attributes: Attributes of the span; nested values are flattened, and a value that an
            attribute cannot hold is written as JSON.

    Raises:
        ValueError: ``fn`` is not callable, or the name is given twice.
    """
    context = OperationContext(propagate=propagate, name=name, record=record, attributes=attributes)
    return context if fn is None else context(fn)


class OperationContext:
    """One operation: the decorator and the context manager that :func:`operation` returns.

    A context manager can be entered only once.
    """

    def __init__(
        self,
        *,
        propagate: bool,
        name: str | None,
        attributes: dict[str, Any],
        record: bool = False,
    ) -> None:
        self._propagate = propagate
        self._record = record
        self._attributes = _flat_attributes(attributes)
        if name is not None:
            if semconv.OPERATION_NAME in self._attributes:
                raise ValueError(f"give name or {semconv.OPERATION_NAME}, not both")
            self._attributes[semconv.OPERATION_NAME] = name
        self._context: AbstractContextManager[SpanRecordingContext] | None = None
        self._recorder: SpanRecordingContext | None = None

    # -- as a decorator --------------------------------------------------------------------------

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Record every call of ``fn``."""
        if not callable(fn):  # pyright: ignore[reportUnnecessaryComparison]
            raise ValueError(f"operation decorates a function, not {fn!r}; use name= for a name")
        signature = inspect.signature(fn)
        attributes: Attributes = {
            semconv.OPERATION_NAME: getattr(fn, "__name__", type(fn).__name__),
            **self._attributes,
        }

        if self._record and (inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)):
            raise ValueError(f"operation(record=True) cannot record the generator {fn!r}")
        repeat = record_calls(fn, str(attributes[semconv.OPERATION_NAME])) if self._record else None

        def opened(inputs: Any) -> AbstractContextManager[SpanRecordingContext]:
            return tracer_for(self._propagate).operation_context(
                semconv.SPAN_OPERATION,
                attributes={**attributes, **_flat(semconv.OPERATION_INPUT, inputs)},
            )

        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def recorded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                inputs = _bound(signature, args, kwargs)
                with opened(inputs) as recorder:
                    if repeat is None:
                        result = await fn(*args, **kwargs)
                    else:
                        result = await repeat(recorder, inputs, args, kwargs)
                    recorder.record_attributes(_flat(semconv.OPERATION_OUTPUT, result))
                    return result

            return cast("Callable[P, R]", recorded_async)

        @functools.wraps(fn)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            inputs = _bound(signature, args, kwargs)
            with opened(inputs) as recorder:
                if repeat is None:
                    result = fn(*args, **kwargs)
                else:
                    result = repeat(recorder, inputs, args, kwargs)
                recorder.record_attributes(_flat(semconv.OPERATION_OUTPUT, result))
                return result

        return recorded

    # -- as a context manager --------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._record:
            raise ValueError("operation(record=True) records a function, not a block")
        if self._recorder is not None:
            raise RuntimeError("this operation was entered before: make a new one")
        self._context = tracer_for(self._propagate).operation_context(
            semconv.SPAN_OPERATION, attributes=self._attributes
        )
        self._recorder = self._context.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(kind, error, traceback)

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Record the inputs: positional values under ``args.<i>``, the others by name.

        Raises:
            RuntimeError: The operation is not running.
        """
        inputs = {"args": _by_position(args), **kwargs}
        self._running().record_attributes(_flat(semconv.OPERATION_INPUT, inputs))

    def set_output(self, output: Any) -> None:
        """Record the output.

        Raises:
            RuntimeError: The operation is not running.
        """
        self._running().record_attributes(_flat(semconv.OPERATION_OUTPUT, output))

    def span(self) -> SpanCoreFields:
        """Return the recorded span; available after the block.

        Raises:
            RuntimeError: The block has not been left yet.
        """
        if self._recorder is None or self._context is not None:
            raise RuntimeError("the span of an operation is known after its block")
        return self._recorder.get_recorded_span()

    def _running(self) -> SpanRecordingContext:
        if self._recorder is None or self._context is None:
            raise RuntimeError("inputs and outputs are recorded within the operation's block")
        return self._recorder


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # the call will raise the same error; record the arguments unbound
        return {"args": _by_position(args), "kwargs": kwargs}
    bound.apply_defaults()
    inputs = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            inputs[parameter.name] = _by_position(inputs[parameter.name])
    return inputs


def _by_position(values: tuple[Any, ...]) -> dict[str, Any]:
    # One key per position: a list of one type would be flattened to a single attribute.
    return {str(index): value for index, value in enumerate(values)}


def _flat(prefix: str, value: Any) -> Attributes:
    """Flatten a value of the user's code; never raises, so that recording cannot break a call."""
    try:
        return _flat_attributes({prefix: value})
    except ValueError:  # keys that are not strings, which JSON may write as strings
        with suppress(TypeError, ValueError, RecursionError):
            return _flat_attributes({prefix: json.loads(json.dumps(value, default=safe_text))})
    except RecursionError:  # cyclic values
        pass
    return {prefix: safe_text(value)}


def _flat_attributes(nested: dict[str, Any]) -> Attributes:
    return without_secrets(sanitize_attributes(flatten_attributes(_without_nulls(nested))))


def _without_nulls(value: Any, depth: int = 0) -> Any:
    """Return a value without the keys that hold None, from the second level on.

    An attribute cannot hold None. Written as text, the content of a message that only calls tools
    would be the word "null", which a model would be trained on. An argument or a result that is
    None as a whole stays, as "null".
    """
    if isinstance(value, dict):
        return {
            key: _without_nulls(item, depth + 1)
            for key, item in cast("dict[Any, Any]", value).items()
            if item is not None or depth < 2
        }
    if isinstance(value, list):
        return [_without_nulls(item, depth + 1) for item in cast("list[Any]", value)]
    return value
