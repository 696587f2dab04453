"""Measures a coding agent with two prompts on small projects.

python examples/coding_agent/main.py
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from typing import Any

import agl_core as agl
from agl_core import semconv
from agl_core.algorithm import RolloutOutcome
from agl_scripted import ModelEndpoint, real_or_scripted
from coding_agent import PROMPTS, client, mend
from coding_model import answer
from coding_tasks import TASKS


def measure(model: ModelEndpoint, prompt: str) -> list[dict[str, Any]]:
    """Run all tasks with a prompt; return a row per task."""
    trainer = agl.Trainer(strategy="shm", n_runners=4, proxy=model.behind_proxy())
    text = agl.PromptTemplate(template=PROMPTS[prompt], engine="f-string")
    outcome = trainer.evaluate(mend, TASKS, resources={"prompt": text})
    return [
        {"prompt": prompt, "task": task["name"], **summary(one)}
        for task, one in zip(TASKS, outcome, strict=True)
    ]


def summary(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return the reward of a rollout, and its model calls and their tokens from its trace."""
    calls = [span.attributes for span in outcome.spans if span.name == semconv.SPAN_MODEL_CALL]
    used = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    tokens = sum(int(str(call.get(name, 0))) for call in calls for name in used)
    return {"reward": outcome.reward, "calls": len(calls), "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a coding agent with two prompts.")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    started = time.monotonic()
    with real_or_scripted(answer, "claude-haiku-4-5", provider="anthropic") as model:
        rows = [row for prompt in PROMPTS for row in measure(model, prompt)]
    client().close()
    if options.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print(f"{len(rows)} rollouts in {time.monotonic() - started:.1f} s\n")
    print("prompt  task     reward  calls  tokens")
    for row in rows:
        reward = "failed" if row["reward"] is None else f"{row['reward']:6.2f}"
        print(f"{row['prompt']:7} {row['task']:8} {reward} {row['calls']:6} {row['tokens']:7}")


if __name__ == "__main__":
    main()
