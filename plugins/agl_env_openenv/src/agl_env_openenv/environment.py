"""Makes an agent and its tasks of the address of an OpenEnv server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from agl_core.agent import Environment, llm_rollout
from agl_core.errors import ConfigError
from agl_core.plugins import did_you_mean, validate_config
from agl_env_openenv.actions import ActionFormat, only_field
from agl_env_openenv.agent import Player, PromptedPlayer
from agl_env_openenv.options import OpenEnvOptions


def load(name: str, options: Mapping[str, Any], *, path: str = "agent") -> Environment:
    """Return the agent and the tasks of a server's environment.

    Args:
        name: Address of the server, e.g. ``http://127.0.0.1:8000``.
        options: Fields of :class:`OpenEnvOptions`.
        path: Key of the reference in a configuration, for messages.

    Raises:
        ConfigError: The server cannot be reached, or an option is wrong.
    """
    config = validate_config(OpenEnvOptions, dict(options), path=path)
    if not name.startswith(("http://", "https://")):
        raise ConfigError(
            f"openenv needs the address of a server, e.g. http://127.0.0.1:8000, not {name!r}",
            path=path,
        )
    url = name.rstrip("/")
    with httpx.Client(headers=config.headers, timeout=config.timeout) as client:
        schemas = _get(client, f"{url}/schema", path)
        rules = _rules(_get(client, f"{url}/metadata", path)) if config.rules is None else ""
    action = _check(config, schemas, path)
    kind = PromptedPlayer if config.prompt_template else Player
    player = kind(url, config, action, rules if config.rules is None else config.rules)
    seeds = [{"seed": seed} for seed in range(config.tasks + config.val_tasks)]
    return Environment(
        agent=llm_rollout(player),
        train_dataset=seeds[: config.tasks],
        val_dataset=seeds[config.tasks :] or None,
    )


def _get(client: httpx.Client, url: str, path: str) -> dict[str, Any]:
    try:
        response = client.get(url)
        response.raise_for_status()
        found = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"openenv cannot read {url}: {said}", path=path) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{url} is not that of an OpenEnv server", path=path)
    return found


def _check(config: OpenEnvOptions, schemas: Mapping[str, Any], path: str) -> ActionFormat:
    """Return how replies become actions, after a check of the fields that the options name."""
    actions = _fields(schemas, "action")
    seen = _fields(schemas, "observation") | _fields(schemas, "reset_observation")
    for option, names, known in (
        ("action_key", [config.action_key], actions),
        ("action_fields", config.action_fields, actions),
        ("observation_key", [config.observation_key], seen),
    ):
        for name in names:
            if name is not None and name not in known:
                raise ConfigError(
                    f"there is no field {name!r}{did_you_mean(name, sorted(known))}",
                    path=f"{path}.{option}",
                )
    schema, fields = schemas["action"], config.action_fields
    if config.action_json:
        return ActionFormat(schema, None, fields)
    return ActionFormat(schema, config.action_key or only_field(schema, fields), fields)


def _fields(schemas: Mapping[str, Any], kind: str) -> set[str]:
    return set((schemas.get(kind) or {}).get("properties", {}))


def _rules(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("description") or metadata.get("name") or "")
