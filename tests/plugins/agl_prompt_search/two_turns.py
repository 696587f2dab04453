"""An agent of two turns whose prompt decides its second answer, and questions about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai import OpenAI

from agl_core.agent import LitAgent
from agl_scripted import Reply, SeenRequest

__all__ = ["TwoTurns", "obedient", "question", "results"]


class TwoTurns(LitAgent[int]):
    """Asks twice with the prompt of a name as the system message; the second answer counts.

    Args:
        prompt: Name of the prompt.
    """

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt

    def rollout(self, task: int, resources: Any, rollout: Any) -> float:
        llm = resources["llm"]
        base = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        system = resources[self.prompt].format(question=task)
        messages: list[Any] = [{"role": "system", "content": system}]
        answer = ""
        with OpenAI(base_url=base, api_key="none") as client:
            for turn in (1, 2):
                messages.append({"role": "user", "content": f"turn {turn}"})
                done = client.chat.completions.create(model=llm.model, messages=messages)
                answer = done.choices[0].message.content or ""
                messages.append({"role": "assistant", "content": answer})
        return float(answer == "right")


def obedient(seen: SeenRequest) -> Reply:
    """Answer rightly at the second turn if the prompt asks for care."""
    first, *_, last = seen.body["messages"]
    careful = last["content"] == "turn 2" and "careful" in first["content"]
    return Reply("right" if careful else "wrong")


def question(run: int, turn: int, prompt: str) -> str:
    return f'<what_if run="{run}" turn="{turn}">\n{prompt}\n</what_if>'


def results(messages: Sequence[Any]) -> list[str]:
    """Return what a model was told about its questions."""
    return [one["content"] for one in messages if one["role"] == "user"][1:]
