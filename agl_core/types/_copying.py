"""Copies records at low cost.

The framework treats records as immutable values: a change creates a new record, and a store takes
and returns copies. That happens several times per rollout, so these functions skip validation (the
values come from validated records) and :func:`copy.deepcopy` (payloads are nearly always JSON).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from agl_core.types._resources import NamedResources, Resource, ResourcesUpdate
from agl_core.types._rollout import Attempt, AttemptedRollout, Rollout, RolloutConfig, Worker
from agl_core.types._span import OtelResource, Span, TraceStatus

M = TypeVar("M", bound=BaseModel)

_IMMUTABLE: Final = frozenset({str, int, float, bool, type(None), bytes})
# Every field of a constructed record counts as set, so all records of a class share one set.
# pydantic adds the name of a field on assignment; the set already contains it.
_field_names: Final[dict[type[BaseModel], set[str]]] = {}
_new = object.__new__
# The setters of a model's slots take half the time of object.__setattr__.
_set_values, _set_names, _set_extra, _set_private = (
    BaseModel.__dict__[f"__{name}__"].__set__
    for name in ("dict", "pydantic_fields_set", "pydantic_extra", "pydantic_private")
)


def construct(cls: type[M], values: dict[str, Any], extra: dict[str, Any] | None = None) -> M:
    """Return a record with these values, without validation; takes ownership of the dicts.

    Args:
        cls: A model without private attributes.
        values: A value for **every** field, in the order of the fields.
        extra: Empty for a model with ``extra="allow"``, None for any other.
    """
    record = _new(cls)
    _set_values(record, values)
    _set_names(record, _field_names.get(cls) or _names_of(cls))
    _set_extra(record, extra)
    _set_private(record, None)
    return record


def evolve(record: M, changes: dict[str, Any]) -> M:
    """Return a copy with some fields changed; it shares the values of the other fields.

    Args:
        record: A record of a model without extra fields and private attributes.
        changes: New values by field.
    """
    # Repeats construct() instead of calling it: every change of a store passes here.
    cls = record.__class__
    changed = _new(cls)
    _set_values(changed, {**record.__dict__, **changes})
    _set_names(changed, _field_names.get(cls) or _names_of(cls))
    _set_extra(changed, None)
    _set_private(changed, None)
    return changed


def copy_value(value: Any) -> Any:
    """Return a deep copy; values other than JSON are copied by :func:`copy.deepcopy`."""
    if type(value) in _IMMUTABLE:
        return value
    try:
        return _copy_json(value)
    except RecursionError:  # a cyclic value; deepcopy keeps a memo
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
    """Return both as one record that shares their values."""
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


def construct_span(values: dict[str, Any], extra: dict[str, Any] | None) -> Span:
    """Like :func:`construct`, for a span; ``values`` has dicts as its status and resource."""
    # Repeats construct() instead of calling it: reading spans is a hot path.
    status, resource, span = _new(TraceStatus), _new(OtelResource), _new(Span)
    _set_values(status, values["status"])
    _set_names(status, _STATUS_NAMES)
    _set_extra(status, {})
    _set_private(status, None)
    _set_values(resource, values["resource"])
    _set_names(resource, _RESOURCE_NAMES)
    _set_extra(resource, None)
    _set_private(resource, None)
    values["status"], values["resource"] = status, resource
    _set_values(span, values)
    _set_names(span, {*_SPAN_NAMES, *extra} if extra else _SPAN_NAMES)
    _set_extra(span, extra or {})
    _set_private(span, None)
    return span


def _names_of(cls: type[BaseModel]) -> set[str]:
    return _field_names.setdefault(cls, set(cls.model_fields))


_STATUS_NAMES, _RESOURCE_NAMES, _SPAN_NAMES = map(_names_of, (TraceStatus, OtelResource, Span))


def _rollout_values(rollout: Rollout) -> dict[str, Any]:
    values = rollout.__dict__.copy()
    values["input"] = copy_value(values["input"])
    values["config"] = copy_config(values["config"])
    values["metadata"] = copy_value(values["metadata"])
    return values
