"""Writes rewards to a trace and reads them from it."""

from __future__ import annotations

import functools
import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, SupportsFloat, TypeVar, cast

from agl_core import semconv
from agl_core.emitter._tracer import tracer_for
from agl_core.otel._attributes import (
    filter_and_unflatten_attributes,
    flatten_attributes,
    sanitize_attributes,
)
from agl_core.semconv import PRIMARY_REWARD, PRIMARY_REWARD_VALUE, RewardPydanticModel
from agl_core.types import Attributes, SpanCoreFields, SpanLike, TraceStatus

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=SpanLike)

_AGENTOPS_OUTPUTS: Final = ("agentops.task.output", "agentops.entity.output")
_LEGACY_VALUE: Final = "reward"


# -- writing -------------------------------------------------------------------------------------


def emit_reward(
    reward: SupportsFloat | Mapping[str, SupportsFloat],
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Record a reward for the running attempt's work so far.

    Args:
        reward: A number, or several numbers by name.
        primary_key: Name of the number to train on, if there are several.
        attributes: Further attributes of the span, for example a link to the model call that
            earned the reward (:func:`agl_core.otel.make_link_attributes`).
        propagate: Record the span; if False, it is only returned, and a runner stores it if the
            agent returns it.

    Raises:
        TypeError: ``reward`` is not a number.
        ValueError: A reward is NaN or infinite; one of several is not a number; or ``primary_key``
            does not name one of them.
        RuntimeError: No tracer is active.
    """
    dimensions = _dimensions(reward, primary_key)
    span_attributes: Attributes = {}
    for index, (name, value) in enumerate(dimensions.items()):
        span_attributes[f"{semconv.REWARD}.{index}.name"] = name
        span_attributes[f"{semconv.REWARD}.{index}.value"] = value
    if attributes:
        span_attributes.update(sanitize_attributes(flatten_attributes(dict(attributes))))
    return tracer_for(propagate).create_span(
        semconv.SPAN_ANNOTATION,
        attributes=span_attributes,
        status=TraceStatus(status_code="OK"),
    )


def _dimensions(
    reward: SupportsFloat | Mapping[str, SupportsFloat], primary_key: str | None
) -> dict[str, float]:
    if not isinstance(reward, Mapping):
        return {PRIMARY_REWARD: _finite(PRIMARY_REWARD, _number(reward))}
    if primary_key is None or primary_key not in reward:
        raise ValueError(
            f"primary_key must name one of the rewards {list(reward)}, not {primary_key!r}"
        )
    ordered = {primary_key: reward[primary_key], **reward}  # readers take the first as primary
    values: dict[str, float] = {}
    for name, value in ordered.items():
        try:
            values[name] = _finite(name, _number(value))
        except TypeError as error:
            raise ValueError(f"reward {name!r}: {error}") from error
    return values


def _number(value: Any) -> float:
    # Numbers of any library are valid; text is not, even if float() accepts it. The isinstance
    # check of a protocol is slow, so plain floats skip it.
    if type(value) is not float and not isinstance(value, SupportsFloat):
        raise TypeError(f"a reward must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError as error:  # an integer that no float holds
        raise ValueError(f"a reward must be finite: {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:  # an array or tensor of several values
        kind = type(value).__name__
        raise TypeError(f"a reward must be one number, not this {kind}: {error}") from error


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"reward {name!r} is {value}, which no algorithm can learn from")
    return value


def reward(function: F) -> F:
    """Emit a function's return value as a reward. Deprecated: call :func:`emit_reward`."""
    warnings.warn("@reward is deprecated: call emit_reward", DeprecationWarning, stacklevel=2)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def emitting_async(*args: Any, **kwargs: Any) -> Any:
            value = await function(*args, **kwargs)
            emit_reward(value)
            return value

        return cast("F", emitting_async)

    @functools.wraps(function)
    def emitting(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        emit_reward(value)
        return value

    return cast("F", emitting)


# -- reading -------------------------------------------------------------------------------------


def get_rewards_from_span(span: SpanLike) -> list[RewardPydanticModel]:
    """Return every dimension of a span's reward, the primary one first; ``[]`` if it has none.

    The reward of a span that came after the end of its attempt does not count.

    Raises:
        ValueError: The dimensions are not numbered from 0, or one lacks its name or value.
    """
    attributes = span.attributes or {}
    found = filter_and_unflatten_attributes(attributes, semconv.REWARD)
    if not found or attributes.get(semconv.LATE):
        return []
    if not isinstance(found, list):
        raise ValueError(f"{semconv.REWARD}.<i> must number rewards from 0")
    return [RewardPydanticModel.model_validate(dimension) for dimension in found]


def get_reward_value(span: SpanLike) -> float | None:
    """Return the primary reward that a span carries, or None.

    Besides the current attributes it reads those of AgentOps' operations and of older versions of
    the format. The reward of a span that came after the end of its attempt does not count, nor does
    a value that is no number, which an agent may annotate a span with.
    """
    try:
        return parse_reward_value(span)
    except (TypeError, ValueError):
        return None


def parse_reward_value(span: SpanLike) -> float | None:
    """Return the primary reward that a span carries, or None, as :func:`get_reward_value` does.

    Raises:
        TypeError, ValueError: The span carries a value that is no number.
    """
    attributes = cast("Mapping[str, Any]", span.attributes or {})
    if attributes.get(semconv.LATE):
        return None
    if PRIMARY_REWARD_VALUE in attributes:
        return _read(attributes[PRIMARY_REWARD_VALUE])
    for key in _AGENTOPS_OUTPUTS:
        if key in attributes:
            value = _agentops_reward(attributes[key])
            if value is not None:
                return value
    if span.name == semconv.SPAN_ANNOTATION and _LEGACY_VALUE in attributes:
        return _read(attributes[_LEGACY_VALUE])
    return None


def _read(value: Any) -> float:
    try:
        return float(value)
    except OverflowError as error:  # an integer that no float holds
        raise ValueError(f"a reward must be finite: {error}") from error


def _agentops_reward(output: Any) -> float | None:
    if isinstance(output, str):
        try:
            output = json.loads(output)
        except ValueError:
            return None  # text that is not JSON is the output of an operation, not a reward
    if not isinstance(output, dict):
        return None
    fields = cast("dict[str, Any]", output)
    if fields.get("type") != "reward" or fields.get("value") is None:
        return None
    warnings.warn(
        "rewards in AgentOps outputs are deprecated: use emit_reward",
        DeprecationWarning,
        stacklevel=4,
    )
    return _read(fields["value"])


def is_reward_span(span: SpanLike) -> bool:
    """Return whether a span carries a reward."""
    return get_reward_value(span) is not None


def find_reward_spans(spans: Sequence[S]) -> list[S]:
    """Return the spans that carry a reward, in the order given."""
    return [span for span in spans if is_reward_span(span)]


def by_authority(spans: Sequence[S]) -> Iterator[S]:
    """Yield spans from the one whose reward counts most: the last one that the agent did not write.

    An agent's own spans, those that came with its attempt's token, are the last of all.
    """
    own: list[S] = []
    for span in reversed(spans):
        if (span.attributes or {}).get(semconv.WRITTEN_BY) == "attempt":
            own.append(span)
        else:
            yield span
    yield from own


def find_final_reward(spans: Sequence[SpanLike]) -> float | None:
    """Return the reward that counts, or None: that of the last span that carries one.

    A reward that the agent did not write itself outranks the agent's, see :func:`by_authority`.
    """
    for span in by_authority(spans):
        value = get_reward_value(span)
        if value is not None:
            return value
    return None
