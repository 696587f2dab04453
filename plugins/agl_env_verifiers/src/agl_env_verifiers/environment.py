"""Makes an agent and its tasks of the name of a verifiers environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import verifiers.v1 as vf
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import taskset_class

from agl_core.agent import Environment, llm_rollout
from agl_core.errors import ConfigError, error_text
from agl_core.plugins import validate_config
from agl_env_verifiers.agent import VerifiersPlayer
from agl_env_verifiers.dataset import TasksetView

_HARNESS: Final = "agl_env_verifiers"
_ENDLESS: Final = 64
"""Training tasks of a taskset without an end, unless a number is given."""


class VerifiersOptions(BaseModel):
    """Options of an environment; other keys are those of its own config (``vf.EnvConfig``)."""

    model_config = ConfigDict(extra="allow")

    tasks: int | None = Field(default=None, ge=1)
    """Number of training tasks; None: all but those of validation, 64 of an endless taskset."""
    val_tasks: int = Field(default=0, ge=0)
    """Number of validation tasks: the first of the taskset."""


def load(name: str, options: Mapping[str, Any], *, path: str = "agent") -> Environment:
    """Return the agent and the tasks of an environment.

    Args:
        name: Id of the taskset, i.e. of an installed environment package.
        options: Fields of :class:`VerifiersOptions`, and of the environment's config: ``taskset``,
            ``timeout``, a table for each agent.
        path: Key of the reference in a configuration, for messages.

    Raises:
        ConfigError: There is no such environment, or an option is wrong.
    """
    given = validate_config(VerifiersOptions, dict(options), path=path)
    try:
        config = _config(name, dict(given.model_extra or {}))
        vf.load_environment(config)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join([path, *map(str, detail["loc"])])
        raise ConfigError(detail["msg"], path=where) from error
    except Exception as error:  # an environment's package raises anything when it is imported
        said = " ".join(error_text(error).split())
        raise ConfigError(f"verifiers cannot load {name!r}: {said}", path=path) from error
    count = given.tasks or (_ENDLESS if taskset_class(name).INFINITE else None)
    return Environment(
        agent=llm_rollout(VerifiersPlayer(config)),
        train_dataset=TasksetView(config, given.val_tasks, count, path),
        val_dataset=TasksetView(config, 0, given.val_tasks, path) if given.val_tasks else None,
    )


def _config(name: str, given: dict[str, Any]) -> vf.EnvConfig:
    """Return the environment's config, with agents that run here unless they are told otherwise.

    verifiers runs an agent in a hosted sandbox by default, with a program that gives the model a
    shell. A task without a container needs neither: its agents chat, in this process.
    """
    raw: dict[str, Any] = {**given, "taskset": {**given.get("taskset", {}), "id": name}}
    roles = agent_config_fields(vf.resolve_env_config(raw))
    brings_harness = vf.default_harness_id(name) != "bash"
    if not vf.task_type(name).NEEDS_CONTAINER:
        for role, spec in roles.items():
            own = dict(given.get(role, {}))
            if isinstance(spec.runtime, vf.PrimeConfig) and "runtime" not in own:
                own["runtime"] = {"type": "subprocess"}
            if spec.harness is None and not brings_harness:
                own["harness"] = {"id": _HARNESS}
            raw[role] = own
    return vf.resolve_env_config(raw)
