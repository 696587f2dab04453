"""Finds and checks what a train file names, without building a component.

A class or function in a file beside the train file is imported. Every error is a
:class:`~agl_core.errors.ConfigError` that starts with the key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from agl_core.agent import Environment, LitAgent, load_environment, rollout
from agl_core.algorithm import Algorithm, algo
from agl_core.errors import AgentSignatureError, ConfigError, InvalidArgumentError, PluginError
from agl_core.plugins import (
    CONFIG_SUFFIXES,
    contract_of,
    did_you_mean,
    get_registry,
    resolve_component,
    validate_config,
)
from agl_core.runner import Hook
from agl_core.store import Interceptor, as_interceptor, default_store
from agl_core.trainer import default_strategy
from agl_core.types import Resource, resource_types
from agl_train.keys import TrainFile
from agl_train.references import dotted_path, import_reference, is_reference

__all__ = [
    "PARTS",
    "check_component",
    "component_of",
    "default_type",
    "environment_of",
    "hook_of",
    "interceptor_of",
    "resource_of",
    "type_name",
]


@dataclass(frozen=True, slots=True)
class Part:
    kind: str
    argument: str  # of Trainer
    default: str = ""  # the component type of a table that has no "type"
    supplied: tuple[str, ...] = ()  # arguments that the trainer injects


PARTS: Final[Mapping[str, Part]] = {
    "algorithm": Part("algorithm", "algorithm"),
    "store": Part("store", "store", "memory"),
    "tracer": Part("tracer", "tracer", "otel"),
    "adapter": Part("adapter", "adapter", "triplet"),
    "strategy": Part("execution", "strategy", "", ("n_runners", "server_port")),
    "proxy": Part("proxy", "llm_proxy", "direct", ("store",)),
    "llm_server": Part("llm_server", "llm_server"),
    "tracker": Part("metrics", "tracker"),
    "runner": Part(
        "runner",
        "runner",
        "agent",
        ("tracer", "max_rollouts", "concurrency"),
    ),
}


def component_of(content: TrainFile, key: str, directory: Path) -> Any:
    """Return a component as the registry takes it: name, table, factory, or the component itself.

    Without the key it is None; the store has a default.

    Args:
        content: Content of the train file.
        key: Key of the component, see :data:`PARTS`.
        directory: Base of relative paths.
    """
    spec = getattr(content, key)
    if spec is None:
        return default_store(directory) if key == "store" else None
    if isinstance(spec, str) and spec.lower().endswith(CONFIG_SUFFIXES):
        return str(directory / spec)
    name = type_name(spec)
    distribution = name.rpartition(":")[0]
    if not is_reference(name) or get_registry().provides(PARTS[key].kind, distribution):
        return spec
    found = import_reference(name, directory, path=key)
    dotted = dotted_path(name)
    if not isinstance(spec, str):
        return {**spec, "type": dotted}
    return _algorithm(found, key) if key == "algorithm" and _is_plain(found) else dotted


def _is_plain(found: object) -> bool:
    """Tell whether an object is a function; one without parameters makes a component."""
    return inspect.isfunction(found) and bool(inspect.signature(found).parameters)


def _algorithm(function: Callable[..., Any], path: str) -> Algorithm:
    try:
        return algo(function)
    except ConfigError as error:
        raise ConfigError(str(error), path=path) from error


def check_component(key: str, spec: Any) -> None:
    """Check that a component can be found, and that it takes its options.

    Raises:
        ConfigError: It refuses its options, or is not of the kind that the key needs.
        PluginError: Its plugin cannot be used.
    """
    part = PARTS[key]
    contract = contract_of(part.kind)
    if contract and isinstance(spec, contract):
        return
    supplied = dict.fromkeys(part.supplied)
    try:
        blueprint = resolve_component(
            part.kind, spec, inject=supplied, default=default_type(key), path=key
        )
    except PluginError as error:
        raise type(error)(f"{key}: {error}") from error
    factory = blueprint.factory
    if contract and inspect.isclass(factory) and not issubclass(factory, contract):
        raise ConfigError(f"{blueprint.source} is not a subclass of {contract.__name__}", path=key)


def default_type(key: str) -> str | None:
    """Return the type of a component whose table has none."""
    return default_strategy().name if key == "strategy" else PARTS[key].default or None


def type_name(spec: Any) -> str:
    """Return the name or the reference of a component, for display."""
    return spec if isinstance(spec, str) else str(spec.get("type", "default"))


def resource_of(name: str, table: dict[str, Any]) -> Resource:
    """Return the resource that a table ``[resources.NAME]`` describes."""
    path = f"resources.{name}"
    fields = dict(table)
    key = "resource_type" if "resource_type" in fields else "type"
    known = resource_types()
    resource_type = fields.pop(key, None)
    if resource_type is None:
        raise ConfigError(f"has no 'type' (known: {', '.join(known)})", path=path)
    if resource_type not in known:
        hint = did_you_mean(str(resource_type), known) or f" (known: {', '.join(known)})"
        raise ConfigError(
            f"there is no resource type {resource_type!r}{hint}", path=f"{path}.{key}"
        )
    model = known[resource_type]
    for field in fields:
        if field not in model.model_fields and model.model_config.get("extra") != "allow":
            hint = did_you_mean(field, model.model_fields)
            raise ConfigError(f"unknown option{hint}", path=f"{path}.{field}")
    return validate_config(model, {**fields, "resource_type": resource_type}, path=path)


def environment_of(spec: str | dict[str, Any], directory: Path) -> Environment:
    """Return the environment that an agent's spec names, or an agent without tasks."""
    options = {} if isinstance(spec, str) else dict(spec)
    reference = spec if isinstance(spec, str) else options.pop("type", None)
    if not isinstance(reference, str):
        raise ConfigError("has no 'type', the reference of an environment", path="agent")
    if environment := load_environment(reference, options):
        return environment
    if options:
        raise ConfigError(
            f"unknown option: {reference} is not an environment", path=f"agent.{min(options)}"
        )
    return Environment(_agent(reference, directory))


def _agent(text: str, directory: Path) -> LitAgent[Any]:
    found: Any = import_reference(text, directory, path="agent")
    try:
        if inspect.isclass(found) and issubclass(found, LitAgent):
            found = cast("Any", found)()
        elif inspect.isfunction(found):
            found = rollout(found)
        if isinstance(found, LitAgent):
            agent = cast("LitAgent[Any]", found)
            agent.check_signature()
            return agent
    except (AgentSignatureError, TypeError) as error:
        raise ConfigError(f"{text}: {error}", path="agent") from error
    raise ConfigError(f"{text} is of type {type(found).__name__}, not an agent", path="agent")


def hook_of(index: int, text: str, directory: Path) -> Hook:
    """Import the hook of rollouts at this index of ``hooks``."""
    path = f"hooks.{index}"
    found = import_reference(text, directory, path=path)
    hook = found() if isinstance(found, type) else found
    if not isinstance(hook, Hook):
        raise ConfigError(f"{text} is of type {type(hook).__name__}, not a Hook", path=path)
    return hook


def interceptor_of(index: int, text: str, directory: Path) -> Interceptor:
    """Import the interceptor at this index of ``interceptors``."""
    path = f"interceptors.{index}"
    found = import_reference(text, directory, path=path)
    try:
        return as_interceptor(found() if isinstance(found, type) else found)
    except InvalidArgumentError as error:
        raise ConfigError(str(error), path=path) from error
