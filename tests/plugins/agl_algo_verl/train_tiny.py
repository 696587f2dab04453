"""Train the tiny model with VERL on a CPU; tests run it as a separate program.

The agents run in other processes, ask the model twice, and are rewarded for digits: the share of
the characters it said that are one. Usage: ``train_tiny.py CONFIG.json``, see :func:`main`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import openai

import agl_core as agl
from agl_algo_verl import VERL


@cache
def client() -> openai.OpenAI:
    """Return the process's client: making one takes longer than a call of the tiny model."""
    return openai.OpenAI(base_url="http://127.0.0.1", api_key="none")


def ask(llm: agl.LLM, messages: list[Any], limit: int = 8) -> str:
    here = client().with_options(base_url=llm.endpoint, api_key=llm.api_key or "none")
    reply = here.chat.completions.create(
        model=llm.model,
        messages=messages,
        max_tokens=limit,
        temperature=llm.sampling_parameters["temperature"],
    )
    return reply.choices[0].message.content or ""


@agl.rollout
def digits(task: dict[str, Any], llm: agl.LLM) -> float:
    """Run two turns; the reward depends on both answers."""
    fault(task)
    messages = [{"role": "user", "content": task["question"]}]
    said = ask(llm, messages)
    messages += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "more"},
    ]
    said += ask(llm, messages)
    return sum(c.isdigit() for c in said) / max(len(said), 1)


def fault(task: dict[str, Any]) -> None:
    """Die or fail, once or always, as the task requires."""
    once = task.get("once")
    if once and Path(once).exists():
        return
    if once:
        Path(once).touch()
    match task.get("fault"):
        case "exit":
            os._exit(9)
        case "raise":
            raise RuntimeError("the agent failed, as it was told to")


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    algorithm: VERL[Any] = VERL(settings["config"], **settings.get("options", {}))
    trainer = agl.Trainer(
        algorithm=algorithm,
        adapter=settings.get("adapter", "trajectory"),
        strategy={"type": "cs", "server_port": 0, "start_method": "spawn"},
        n_runners=settings.get("n_runners", 2),
        tracer={"type": "otel"},
        **({"store": settings["store"]} if "store" in settings else {}),
        **({"run": settings["run"]} if "run" in settings else {}),
    )
    trainer.fit(digits, settings["train"], val_dataset=settings.get("val"))


if __name__ == "__main__":
    main()
