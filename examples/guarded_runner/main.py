"""Runs an agent under a policy: vetoes of tool calls, and penalties in the reward.

python examples/guarded_runner/main.py
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections import defaultdict
from itertools import chain
from typing import Any

import agl_core as agl
from agl_core.emitter import get_rewards_from_span
from agl_scripted import ModelEndpoint, real_or_scripted
from guard import Guard
from support_agent import POLICY, PROMPTS, TASKS, client, handle
from support_model import answer

MODES = {
    "observe": Guard(POLICY, penalty=0.0, vetoes=False),
    "penalise": Guard(POLICY, vetoes=False),
    "veto": Guard(POLICY),
}


def measure(model: ModelEndpoint, prompt: str, mode: str) -> dict[str, Any]:
    """Run all tasks with a prompt under a guard; return the means."""
    trainer = agl.Trainer(
        strategy="shm", n_runners=4, proxy=model.behind_proxy(), hooks=MODES[mode]
    )
    text = agl.PromptTemplate(template=PROMPTS[prompt], engine="f-string")
    outcome = trainer.evaluate(handle, TASKS, resources={"prompt": text})
    final = [get_rewards_from_span(one.spans[-1]) for one in outcome]  # written by the guard
    totals: defaultdict[str, float] = defaultdict(float)
    for dimension in chain(*final):
        totals[dimension.name] += dimension.value
    return {
        "prompt": prompt,
        "guard": mode,
        "task": totals["task"] / len(outcome),
        "violations": int(totals["violations"]),
        "reward": outcome.score().mean,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Run an agent under a policy.")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    with real_or_scripted(answer, "gpt-4.1-mini") as model:
        rows = [measure(model, prompt, mode) for mode in MODES for prompt in PROMPTS]
    client().close()
    if options.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print("guard     prompt   task  violations  reward")
    for row in rows:
        numbers = f"{row['task']:5.2f} {row['violations']:11} {row['reward']:7.2f}"
        print(f"{row['guard']:9} {row['prompt']:8}{numbers}")


if __name__ == "__main__":
    main()
