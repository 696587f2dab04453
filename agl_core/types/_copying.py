"""Cheap copies of records.

The framework treats records as immutable values: a change is a new record, and a store takes and
returns copies. Both happen several times per rollout. So these functions skip pydantic's validation
(the values come from validated records) and :func:`copy.deepcopy` (payloads are nearly always
JSON).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel

from agl_core.types._resources import NamedResources, Resource, ResourcesUpdate
from agl_core.types._rollout import Attempt, AttemptedRollout, Rollout, RolloutConfig, Worker
from agl_core.types._span import OtelResource, Span, SpanContext, TraceStatus

__all__ = [
    "attach_attempt",
    "construct",
    "copy_attempt",
    "copy_config",
    "copy_plain_span",
    "copy_resources",
    "copy_rollout",
    "copy_snapshot",
    "copy_value",
    "copy_worker",
    "evolve",
    "is_plain_span",
    "join_attempt",
]

M = TypeVar("M", bound=BaseModel)

_IMMUTABLE: Final = frozenset({str, int, float, bool, type(None), bytes})
_LEAVES: Final = frozenset({str, int, float, bool})
# Every field of a constructed record counts as set, so all records of a class share one set:
# assigning to a field adds a name that is in it already.
_field_names: Final[dict[type[BaseModel], set[str]]] = {}
_new = object.__new__
_set = object.__setattr__


def construct(cls: type[M], values: dict[str, Any]) -> M:
    """Return a record of these values without validating them; takes ownership of the dict.

    Args:
        cls: A model without private attributes and without ``extra="allow"``.
        values: A value for **every** field, in the order of the fields.
    """
    names = _field_names.get(cls)
    if names is None:
        names = _field_names[cls] = set(cls.model_fields)
    record = _new(cls)
    _set(record, "__dict__", values)
    _set(record, "__pydantic_fields_set__", names)
    _set(record, "__pydantic_extra__", None)
    _set(record, "__pydantic_private__", None)
    return record


def evolve(record: M, changes: dict[str, Any]) -> M:
    """Return a copy of ``record`` with these fields changed, sharing the values of the others."""
    return construct(type(record), {**record.__dict__, **changes})


def copy_value(value: Any) -> Any:
    """Return a deep copy: dicts, lists and scalars fast, anything else by :func:`copy.deepcopy`."""
    if type(value) in _IMMUTABLE:
        return value
    try:
        return _copy_json(value)
    except RecursionError:  # it contains itself; deepcopy keeps a memo and copes
        return copy.deepcopy(value)


def _copy_json(value: Any) -> Any:
    kind: Any = value.__class__
    if kind is dict:
        return {
            key: item if type(item) in _IMMUTABLE else _copy_json(item)
            for key, item in value.items()
        }
    if kind is list:
        return [item if type(item) in _IMMUTABLE else _copy_json(item) for item in value]
    if kind in _IMMUTABLE:
        return value
    return copy.deepcopy(value)


def copy_config(config: RolloutConfig) -> RolloutConfig:
    """Return a copy that shares nothing mutable."""
    values = config.__dict__.copy()
    values["retry_condition"] = list(config.retry_condition)
    return construct(type(config), values)


def copy_attempt(attempt: Attempt) -> Attempt:
    """Return a copy that shares nothing mutable."""
    values = attempt.__dict__.copy()
    if values["metadata"]:
        values["metadata"] = copy_value(values["metadata"])
    elif values["metadata"] is not None:
        values["metadata"] = {}
    return construct(Attempt, values)


def copy_rollout(rollout: Rollout) -> Rollout:
    """Return a plain rollout that shares nothing mutable."""
    return construct(Rollout, _rollout_values(rollout))


def attach_attempt(rollout: Rollout, attempt: Attempt) -> AttemptedRollout:
    """Return copies of both as one record."""
    values = _rollout_values(rollout)
    values["attempt"] = copy_attempt(attempt)
    return construct(AttemptedRollout, values)


def join_attempt(rollout: Rollout, attempt: Attempt) -> AttemptedRollout:
    """Return both as one record, which takes their values over without copying them."""
    return construct(AttemptedRollout, {**rollout.__dict__, "attempt": attempt})


def copy_worker(worker: Worker) -> Worker:
    """Return a copy that shares nothing mutable."""
    values = worker.__dict__.copy()
    values["heartbeat_stats"] = copy_value(values["heartbeat_stats"])
    return construct(Worker, values)


def copy_resources(resources: Mapping[str, Resource]) -> NamedResources:
    """Return a copy that shares nothing mutable."""
    return {name: resource.model_copy(deep=True) for name, resource in resources.items()}


def copy_snapshot(snapshot: ResourcesUpdate) -> ResourcesUpdate:
    """Return a copy that shares nothing mutable."""
    return evolve(snapshot, {"resources": copy_resources(snapshot.resources)})


def is_plain_span(span: Span) -> bool:
    """Whether :func:`copy_plain_span` can copy a span.

    A plain span has no events, no links and no extra keys, and each of its attributes is a
    primitive or a list of primitives.
    """
    return (
        type(span) is Span
        and not (span.events or span.links or span.__pydantic_extra__)
        and all(map(_has_no_extra, (span.status, span.context, span.parent, span.resource)))
        and all(map(_is_flat, (span.attributes, span.resource.attributes)))
    )


def _has_no_extra(model: BaseModel | None) -> bool:
    return model is None or not model.__pydantic_extra__


def _is_flat(attributes: dict[str, Any]) -> bool:
    kinds = set(map(type, attributes.values()))
    if kinds <= _LEAVES:
        return True
    return kinds <= {*_LEAVES, list} and all(
        type(value) is not list or _LEAVES.issuperset(map(type, cast("list[Any]", value)))
        for value in attributes.values()
    )


def copy_plain_span(span: Span) -> Span:
    """Return a copy of a plain span that shares nothing mutable; see :func:`is_plain_span`."""
    values = span.__dict__.copy()
    values["attributes"] = _copy_attributes(values["attributes"])
    values["events"] = []
    values["links"] = []
    values["status"] = _construct_open(TraceStatus, values["status"].__dict__.copy())
    for name in ("context", "parent"):
        context = values[name]
        if context is not None:
            fields = context.__dict__.copy()
            fields["trace_state"] = fields["trace_state"].copy()
            values[name] = _construct_open(SpanContext, fields)
    resource = values["resource"].__dict__.copy()
    resource["attributes"] = _copy_attributes(resource["attributes"])
    values["resource"] = construct(OtelResource, resource)
    return _construct_open(Span, values)


def _copy_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    copied = attributes.copy()
    if list in map(type, copied.values()):
        for key, value in copied.items():
            if type(value) is list:
                copied[key] = value.copy()  # pyright: ignore[reportUnknownMemberType]
    return copied


def _construct_open(cls: type[M], values: dict[str, Any]) -> M:
    """Construct a record of a model with ``extra="allow"``, without any extra key."""
    record = construct(cls, values)
    _set(record, "__pydantic_extra__", {})
    return record


def _rollout_values(rollout: Rollout) -> dict[str, Any]:
    values = rollout.__dict__.copy()
    values["input"] = copy_value(values["input"])
    values["config"] = copy_config(values["config"])
    values["metadata"] = copy_value(values["metadata"])
    return values
