"""The agent: it says in which aisle a thing lies, which only the people of the shop know."""

from __future__ import annotations

import functools
from typing import Any

import tinker

import agl_core as agl

__all__ = ["AISLES", "TASKS", "make_agent", "question"]

_THINGS = {
    "north": ("lamps", "chairs", "mirrors"),
    "east": ("paint", "brushes", "ladders"),
    "south": ("seeds", "pots", "shovels"),
    "west": ("screws", "hammers", "saws"),
}
AISLES = tuple(_THINGS)
TASKS = [{"thing": thing, "aisle": aisle} for aisle, things in _THINGS.items() for thing in things]
_MAX_TOKENS = 16


def question(task: dict[str, Any]) -> str:
    return f"Where are the {task['thing']}? Answer with one word: {', '.join(AISLES)}."


def make_agent(service: tinker.ServiceClient, tokenizer: Any) -> Any:
    """Return the agent; it samples the weights that its resource names.

    Args:
        service: A connection to Tinker.
        tokenizer: The tokenizer of the model.
    """

    @agl.rollout
    def answer(task: dict[str, Any], llm: agl.LLM) -> float:
        """Ask once; the reward is 1 for the right aisle, else 0."""
        messages = [{"role": "user", "content": question(task)}]
        completion = chat(llm.model, messages, llm.sampling_parameters["temperature"])
        said = completion["choices"][0]["message"]["content"]
        return float(said.strip(" .\n").lower() == task["aisle"])

    @agl.operation(name="chat")
    def chat(model: str, messages: list[Any], temperature: float) -> dict[str, Any]:
        """Sample an answer; it is recorded with its token ids and log-probabilities."""
        # Templates without thinking ignore the option.
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        prompt: list[int] = tokenizer.encode(text, add_special_tokens=False)
        params = tinker.SamplingParams(max_tokens=_MAX_TOKENS, temperature=temperature)
        sampled = sampler(model).sample(tinker.ModelInput.from_ints(prompt), 1, params).result()
        (one,) = sampled.sequences
        return {
            "id": one.sequence_id,
            "model": model,
            "prompt_token_ids": prompt,
            "choices": [
                {
                    "message": {
                        "role": "assistant",
                        "content": tokenizer.decode(one.tokens, skip_special_tokens=True),
                    },
                    "finish_reason": one.stop_reason,
                    "token_ids": list(one.tokens),
                    "logprobs": {"content": [{"logprob": value} for value in one.logprobs or ()]},
                }
            ],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(one.tokens)},
        }

    @functools.cache
    def sampler(model: str) -> tinker.SamplingClient:
        saved = model.startswith("tinker://")
        chosen = {"model_path": model} if saved else {"base_model": model}
        return service.create_sampling_client(**chosen).result()

    return answer
