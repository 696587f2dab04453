"""Environments: agents that come with their tasks, made by a plugin from a reference.

``"gymnasium:FrozenLake-v1"`` is such a reference: the name of a plugin of the kind ``environment``,
and the name of one of its environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl_core.agent._base import LitAgent
from agl_core.errors import ConfigError
from agl_core.plugins import get_registry, known_names

if TYPE_CHECKING:
    from agl_core.types import Dataset


@dataclass(frozen=True, slots=True)
class Environment:
    """An agent and its tasks.

    Attributes:
        agent: Acts in the environment; its reward is the environment's.
        train_dataset: Tasks to learn from. A run that needs only the agent does not read them, so a
            dataset that is slow to load should load itself at the first use.
        val_dataset: Tasks to measure on.
    """

    agent: LitAgent[Any]
    train_dataset: Dataset[Any] | None = None
    val_dataset: Dataset[Any] | None = None


def load_environment(
    reference: str, options: Mapping[str, Any] | None = None, *, path: str = "agent"
) -> Environment | None:
    """Return the environment of a reference, or None if it is not one of an environment.

    Args:
        reference: ``"plugin:name"``; what ``name`` may be is up to the plugin.
        options: Options of the environment; see the plugin's page.
        path: Key of the reference in a configuration, for messages.

    Raises:
        ConfigError: The plugin has no such environment, or refuses an option.
        PluginError: The plugin is not installed, or cannot be used.
    """
    plugin, colon, name = reference.partition(":")
    registry = get_registry()
    installed = {record.name for record in registry.of_kind("environment")}
    if not colon or plugin not in installed.union(known_names("environment")):
        return None
    record = registry.find("environment", plugin)
    if not name:
        raise ConfigError(f"{reference!r} lacks the name of an environment", path=path)
    load = registry.load(record).resolve(record)
    return load(name, dict(options or {}), path=path)
