"""Two agents that need each other: a picker chooses a shelf, a reader says what was found on it.

The picker sees the question, the reader sees only what lies on the shelf that the picker chose. The
task is done if the reader names the digit on the shelf in question, so neither can do it alone.

A class is used in place of ``@agl.rollout`` because the agent has two models: each policy is a
resource under its own name.
"""

from __future__ import annotations

import functools
import random
import re
from collections import deque
from typing import Any

from openai import OpenAI

import agl_core as agl

__all__ = ["POLICIES", "Team", "make_tasks"]

POLICIES = ("picker", "reader")
SHUFFLED_BY = 64
"""How many rollouts of the same process lie between a rollout and its reward if it is shuffled."""


class Team(agl.LitAgent[dict[str, Any]]):
    """One rollout: the picker's call, then the reader's.

    Args:
        own: Give each policy a reward for its own part; False: one reward for both, for the task.
        shuffle: Policy that gets the rewards of other rollouts, from which nothing can be learned;
            a control experiment. The other rollouts are of other tasks, since a group's mean
            reward would contain the policy's own.
    """

    def __init__(self, *, own: bool = False, shuffle: str | None = None) -> None:
        super().__init__()
        self._own = own
        self._shuffle = shuffle
        self._earlier = deque([0.0] * SHUFFLED_BY)

    def rollout(
        self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
    ) -> None:
        picker, reader = (llm_of(resources[name], rollout) for name in POLICIES)
        asked, shelves = str(task["shelf"]), str(task["shelves"])
        picked = ask(picker, f"Shelf {asked}?")
        found = shelves[int(picked)] if re.fullmatch("[0-9]", picked) else "?"
        answer = ask(reader, f"Found {found}.")
        right = float(answer == shelves[int(asked)])
        rewards = {"task": right, "picker": right, "reader": right}
        if self._own:
            rewards |= {"picker": float(picked == asked), "reader": float(answer == found)}
        if self._shuffle is not None:
            self._earlier.append(rewards[self._shuffle])
            rewards[self._shuffle] = self._earlier.popleft()
        agl.emit_reward(rewards, primary_key="task")


def llm_of(resource: agl.Resource, rollout: agl.Rollout) -> agl.LLM:
    """Return a policy as an OpenAI client takes it; its calls are filed under this rollout."""
    assert isinstance(resource, agl.ProxyLLM)
    assert isinstance(rollout, agl.AttemptedRollout)
    return resource.with_attempted_rollout(rollout)


def ask(llm: agl.LLM, text: str) -> str:
    """Return the model's answer."""
    here = client().with_options(base_url=llm.endpoint)  # each attempt has its own URL
    completion = here.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": text}], **llm.sampling_parameters
    )
    return (completion.choices[0].message.content or "").strip()


@functools.cache
def client() -> OpenAI:
    # One client per process: creating a client loads the certificates.
    return OpenAI(base_url="http://127.0.0.1", api_key="none", timeout=60)


def make_tasks(count: int, seed: int) -> list[dict[str, Any]]:
    """Return tasks: the shelf in question, and the digits on all ten shelves, each once."""
    rng = random.Random(seed)
    return [
        {"shelf": rng.randrange(10), "shelves": "".join(rng.sample("0123456789", 10))}
        for _ in range(count)
    ]
