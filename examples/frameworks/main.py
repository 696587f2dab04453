"""Compares two prompts for the same agent in four frameworks, and shows what was recorded.

python examples/frameworks/main.py
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import time
from typing import Any

import agl_core as agl
from agl_core import semconv
from agl_scripted import ModelEndpoint, real_or_scripted
from packing import PROMPTS, TASKS
from packing_model import answer

FRAMEWORKS = {
    "AutoGen": "with_autogen",
    "CrewAI": "with_crewai",
    "LangGraph": "with_langgraph",
    "OpenAI Agents": "with_openai_agents",
}


def measure(model: ModelEndpoint, framework: str, prompt: str) -> dict[str, Any]:
    """Run all tasks with a prompt in a framework; return the means."""
    agent = importlib.import_module(FRAMEWORKS[framework]).pack
    trainer = agl.Trainer(strategy="shm", concurrency=4, proxy=model.behind_proxy())
    text = agl.PromptTemplate(template=PROMPTS[prompt], engine="f-string")
    began = time.monotonic()
    outcome = trainer.evaluate(agent, TASKS, resources={"prompt": text})
    spans = [span for one in outcome for span in one.spans]
    calls = sum(span.name == semconv.SPAN_MODEL_CALL for span in spans)
    tools = sum(span.attributes.get(semconv.OPERATION_NAME) == "look_up" for span in spans)
    return {
        "framework": framework,
        "prompt": prompt,
        "reward": outcome.score().mean,
        "calls": calls / len(outcome),
        "lookups": tools / len(outcome),
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare prompts in four frameworks.")
    parser.add_argument("--only", choices=list(FRAMEWORKS), action="append", help="a framework")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    with real_or_scripted(answer, "gpt-4.1-mini") as model:
        chosen = options.only or list(FRAMEWORKS)
        rows = [measure(model, framework, prompt) for framework in chosen for prompt in PROMPTS]
    if options.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print("framework      prompt  reward  calls  lookups  seconds")
    for row in rows:
        means = f"{row['reward']:6.2f} {row['calls']:6.1f} {row['lookups']:8.1f}"
        print(f"{row['framework']:14} {row['prompt']:6} {means} {row['seconds']:8.1f}")


if __name__ == "__main__":
    main()
