"""The agent: one question, one answer, and a reward for the right one."""

from __future__ import annotations

from typing import Any

import agl_core as agl
from sft_model import sample
from sft_tasks import messages_of

__all__ = ["answer"]


@agl.rollout
def answer(task: dict[str, Any], llm: agl.LLM) -> float:
    """Ask the model that the resource names; the reward is 1 for the right answer, else 0."""
    temperature = llm.sampling_parameters["temperature"]
    completion = chat(llm.model, messages_of(task["question"]), temperature)
    said = completion["choices"][0]["message"]["content"]
    return float(said.strip() == task["answer"])


@agl.operation(name="chat")
def chat(model: str, messages: list[Any], temperature: float) -> dict[str, Any]:
    """Call the model in this process; its completion is recorded, token ids included."""
    return sample(model, messages, temperature)
