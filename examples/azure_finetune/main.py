"""Rejection sampling on Azure OpenAI: sample, keep what was rewarded, fine-tune, deploy, measure.

python examples/azure_finetune/main.py
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from typing import Any

import agl_core as agl
from azure_resource import Resource, connected
from mail_agent import TASKS, client, question, route


def measure(resource: Resource, deployment: str, samples: int) -> Any:
    """Run each task several times on a deployment."""
    llm = agl.LLM(endpoint=resource.endpoint, model=deployment, api_key=resource.key)
    trainer = agl.Trainer(strategy="shm", n_runners=4)
    return trainer.evaluate(route, TASKS * samples, resources={"llm": llm})


def rewarded(outcome: Any, samples: int) -> list[dict[str, Any]]:
    """Return a chat for each rollout that was rewarded."""
    return [
        {
            "messages": [
                {"role": "user", "content": question(task)},
                {"role": "assistant", "content": task["team"]},
            ]
        }
        for task, one in zip(TASKS * samples, outcome, strict=True)
        if one.reward == 1.0
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a model on Azure OpenAI.")
    parser.add_argument("--samples", type=int, default=12, help="rollouts of each task")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    if not os.environ.get("AZURE_OPENAI_ENDPOINT"):
        print(
            "No AZURE_OPENAI_ENDPOINT: a FAKE resource serves a SIMULATED model.", file=sys.stderr
        )
    began = time.monotonic()
    with connected() as (resource, base):
        before = measure(resource, base, options.samples)
        rows = rewarded(before, options.samples)
        tuned = resource.fine_tune(rows)
        with resource.deployed(tuned) as deployment:
            after = measure(resource, deployment, 1)
        client(resource.endpoint, resource.key).close()
    table = [
        {"deployment": base, "model": resource.model, "rollouts": len(before), "rows": 0},
        {"deployment": deployment, "model": tuned, "rollouts": len(after), "rows": len(rows)},
    ]
    for row, outcome in zip(table, (before, after), strict=True):
        row["reward"] = outcome.score().mean
    if options.json:
        print(*map(json.dumps, table), sep="\n")
        return
    print(f"{time.monotonic() - began:.1f} s\n")
    print("deployment    model                         rollouts  trained on  reward")
    for row in table:
        counts = f"{row['rollouts']:8} {row['rows']:11} {row['reward']:7.2f}"
        print(f"{row['deployment']:13} {row['model']:29} {counts}")


if __name__ == "__main__":
    main()
