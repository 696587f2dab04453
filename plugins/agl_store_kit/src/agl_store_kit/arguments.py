"""Checks of the arguments of store calls, shared by all stores.

Each function returns values that are valid and that the store owns (copies), or raises
:class:`~agl_core.errors.InvalidArgumentError` before the store changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from pydantic import ValidationError

from agl_core.errors import InvalidArgumentError
from agl_core.store import UNSET
from agl_core.types import (
    AttemptStatus,
    NamedResources,
    ResourcesUpdate,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    as_json_value,
    copy_config,
    copy_resources,
)

_MODES: Final = (None, *get_args(RolloutMode))
_ROLLOUT_STATUSES: Final = get_args(RolloutStatus)
_ATTEMPT_STATUSES: Final = get_args(AttemptStatus)
_DEFAULTS: Final = RolloutConfig()


def new_rollout_fields(
    input: Any, mode: Any, resources_id: Any, config: Any, metadata: Any
) -> dict[str, Any]:
    """Return the fields of a new rollout that its creator chooses, with defaults filled in."""
    _one_of("mode", mode, _MODES)
    _optional_string("resources_id", resources_id)
    return {
        "input": as_json_value(input, "input"),
        "mode": mode,
        "resources_id": resources_id,
        "config": copy_config(_DEFAULTS) if config is None else _config(config),
        "metadata": {} if metadata is None else _mapping("metadata", metadata),
    }


def rollout_changes(
    *, input: Any, mode: Any, resources_id: Any, status: Any, config: Any, metadata: Any
) -> dict[str, Any]:
    """Return the arguments of ``update_rollout`` that were given."""
    changes: dict[str, Any] = {}
    if input is not UNSET:
        changes["input"] = as_json_value(input, "input")
    if mode is not UNSET:
        _one_of("mode", mode, _MODES)
        changes["mode"] = mode
    if resources_id is not UNSET:
        _optional_string("resources_id", resources_id)
        changes["resources_id"] = resources_id
    if status is not UNSET:
        _one_of("status", status, _ROLLOUT_STATUSES)
        changes["status"] = status
    if config is not UNSET:
        changes["config"] = _config(config)
    if metadata is not UNSET:
        changes["metadata"] = None if metadata is None else _mapping("metadata", metadata)
    return changes


def attempt_changes(
    *, status: Any, worker_id: Any, last_heartbeat_time: Any, metadata: Any
) -> dict[str, Any]:
    """Return the arguments of ``update_attempt`` that were given."""
    changes: dict[str, Any] = {}
    if status is not UNSET:
        _one_of("status", status, _ATTEMPT_STATUSES)
        changes["status"] = status
    if worker_id is not UNSET:
        if type(worker_id) is not str:
            raise InvalidArgumentError(f"worker_id must be a string, not {worker_id!r}")
        changes["worker_id"] = worker_id
    if last_heartbeat_time is not UNSET:
        if isinstance(last_heartbeat_time, bool) or not isinstance(
            last_heartbeat_time, (int, float)
        ):
            raise InvalidArgumentError(
                f"last_heartbeat_time must be epoch seconds, not {last_heartbeat_time!r}"
            )
        changes["last_heartbeat_time"] = float(last_heartbeat_time)
    if metadata is not UNSET:
        changes["metadata"] = None if metadata is None else _mapping("metadata", metadata)
    return changes


def worker_changes(worker_id: Any, heartbeat_stats: Any) -> dict[str, Any]:
    """Return the arguments of ``update_worker`` that were given.

    Raises:
        TypeError: ``heartbeat_stats`` is None.
        InvalidArgumentError: The id is empty, or the stats are not a mapping.
    """
    if heartbeat_stats is None:
        raise TypeError("heartbeat_stats must be a mapping; leave it out to keep the last one")
    if not isinstance(worker_id, str) or not worker_id:
        raise InvalidArgumentError(f"worker_id must be a non-empty string, not {worker_id!r}")
    if heartbeat_stats is UNSET:
        return {}
    return {"heartbeat_stats": _mapping("heartbeat_stats", heartbeat_stats)}


def checked_resources(resources: Any) -> NamedResources:
    """Return a copy of resources by name; dicts in it become the resources they describe."""
    try:
        checked = ResourcesUpdate(
            resources_id="", create_time=0, update_time=0, version=1, resources=resources
        ).resources
    except ValidationError as error:
        raise InvalidArgumentError(f"resources: {_first(error)}") from error
    return copy_resources(checked)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        names = ", ".join(map(repr, allowed))
        raise InvalidArgumentError(f"{name} must be one of {names}, not {value!r}")


def _optional_string(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a string or None, not {value!r}")


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name} must be a mapping, not {value!r}")
    return as_json_value(dict(cast("Mapping[Any, Any]", value)), name)


def _config(config: Any) -> RolloutConfig:
    # Fields of a model can be assigned without a check, so an instance is checked as well.
    values = config.__dict__ if isinstance(config, RolloutConfig) else config
    try:
        return RolloutConfig.model_validate(values)
    except ValidationError as error:
        raise InvalidArgumentError(f"config: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
