"""Makes an agent and its tasks from the name of a Gymnasium environment."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

import gymnasium
from gymnasium import spaces

from agl_core.agent import Environment, llm_rollout
from agl_core.errors import ConfigError, error_text
from agl_core.plugins import validate_config
from agl_env_gymnasium.agent import Player, PromptedPlayer, make
from agl_env_gymnasium.options import GymnasiumOptions
from agl_env_gymnasium.spaces import check_observations, describe_actions

_TOLD: Final = ("description", "action space", "observation space", "rewards", "episode end")
"""Sections of Gymnasium's documentation that tell a player the rules."""


def load(name: str, options: Mapping[str, Any], *, path: str = "agent") -> Environment:
    """Return the agent and the tasks of an environment.

    Args:
        name: Id of the environment, e.g. ``FrozenLake-v1``; ``module:Id-v0`` imports the module
            that registers it.
        options: Fields of :class:`GymnasiumOptions`.
        path: Key of the reference in a configuration, for messages.

    Raises:
        ConfigError: There is no such environment, it has no text form, or an option is wrong.
    """
    config = validate_config(GymnasiumOptions, dict(options), path=path)
    try:
        env = make(name, config.make)
    except Exception as error:  # environments raise anything for arguments that they do not take
        said = " ".join(error_text(error).split())
        raise ConfigError(f"gymnasium cannot make {name!r}: {said}", path=path) from error
    try:
        _check(env, config, path)
        rules = rules_of(env) if config.rules is None else config.rules
    finally:
        env.close()
    player = (PromptedPlayer if config.prompt_template else Player)(name, config, rules)
    seeds = [{"seed": seed} for seed in range(config.tasks + config.val_tasks)]
    return Environment(
        agent=llm_rollout(player),
        train_dataset=seeds[: config.tasks],
        val_dataset=seeds[config.tasks :] or None,
    )


def _check(env: gymnasium.Env[Any, Any], config: GymnasiumOptions, path: str) -> None:
    space, names = env.action_space, config.actions
    try:
        describe_actions(space, names)
        check_observations(env.observation_space)
    except TypeError as error:
        raise ConfigError(f"{env.spec.id if env.spec else env}: {error}", path=path) from error
    if names is not None and not isinstance(space, spaces.Discrete):
        raise ConfigError(f"{space} has no named actions", path=f"{path}.actions")
    if names is not None and len(names) != int(space.n):  # pyright: ignore[reportAttributeAccessIssue]
        raise ConfigError(
            f"names {len(names)} actions, and there are {space.n}",  # pyright: ignore[reportAttributeAccessIssue]
            path=f"{path}.actions",
        )


def rules_of(env: gymnasium.Env[Any, Any]) -> str:
    """Return the sections of an environment's documentation that a player needs."""
    documentation = inspect.getdoc(type(env.unwrapped)) or ""
    if documentation == inspect.getdoc(gymnasium.Env):
        return ""  # inherited by a class without a text of its own
    first, *sections = re.split(r"^## +", documentation, flags=re.MULTILINE)
    told = [
        f"{title.strip()}\n{text.strip()}"
        for title, _, text in (section.partition("\n") for section in sections)
        if title.strip().lower() in _TOLD
    ]
    return "\n\n".join(part for part in (first.strip(), *told) if part)
