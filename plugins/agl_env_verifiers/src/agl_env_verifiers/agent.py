"""The agent: runs an episode of an environment with the model of the run."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import verifiers.v1 as vf

from agl_core.emitter import emit_reward
from agl_core.types import LLM

_lock: Final = threading.Lock()
_users: Final[Counter[str]] = Counter()
"""Episodes that use each environment variable with a key."""


class EpisodeError(RuntimeError):
    """An episode failed; the message is the last error that verifiers recorded."""


class VerifiersPlayer:
    """An agent function: one call runs one episode and records its rewards.

    Each episode has an environment of its own, so many can run at a time.

    Args:
        config: Config of the environment.
    """

    concurrent = True

    def __init__(self, config: vf.EnvConfig) -> None:
        self._config = config

    def __repr__(self) -> str:
        return f"verifiers:{self._config.env_id}"

    async def __call__(self, task: Any, llm: LLM) -> None:
        """Run the episode of a task, which is a dict of the environment's task data.

        Raises:
            EpisodeError: The episode failed.
        """
        env = vf.load_environment(self._config)
        kind = type(env.taskset).task_type()
        one = kind(kind.data_type().model_validate(task), self._config.taskset.task)
        with _variable(llm.api_key) as name:
            context = vf.ModelContext(
                model=llm.model,
                client=vf.EvalClientConfig(base_url=llm.endpoint, api_key_var=name),
                sampling=vf.SamplingConfig.model_validate(llm.sampling_parameters),
            )
            async with env.serving():
                episode = await env.run_slot(env.slots(one)[0], context)
        if not env.complete(episode):
            raise EpisodeError(_failure(episode))
        emit_reward(rewards_of(episode), primary_key="reward")


def rewards_of(episode: vf.Episode[Any, Any, Any]) -> dict[str, float]:
    """Return the rewards of an episode by name.

    ``reward`` is the sum of the weighted rewards, and the mean over the agents that are trained if
    there are several. Each reward function is a number of its own, without its weight; with several
    agents its name starts with the agent's.
    """
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    traces = trained or episode.traces
    found = {"reward": sum(trace.reward for trace in traces) / len(traces)}
    for trace in traces:
        prefix = f"{trace.agent.name}." if len(traces) > 1 else ""
        scores: Mapping[str, vf.Reward | None] = trace.rewards
        for name, reward in scores.items():
            if reward is not None:
                found.setdefault(f"{prefix}{name}", reward.score)
    return found


def _failure(episode: vf.Episode[Any, Any, Any]) -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not errors:
        return "the episode did not end well, and verifiers recorded no error"
    return f"{errors[-1].type}: {' '.join(errors[-1].message.split())}"


@contextmanager
def _variable(key: str | None) -> Generator[str]:
    """Give an environment variable with a key: verifiers reads keys from nowhere else.

    It keeps variables whose names contain ``API_KEY`` from the programs that it starts. Each
    attempt may have a key of its own, so the variable is removed when no episode needs it.
    """
    if not key:
        yield "AGL_NO_API_KEY"
        return
    name = f"AGL_API_KEY_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    with _lock:
        _users[name] += 1
        os.environ[name] = key
    try:
        yield name
    finally:
        with _lock:
            _users[name] -= 1
            if not _users[name]:
                del _users[name], os.environ[name]
