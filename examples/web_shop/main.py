"""Long episodes in a web shop: how much of the past an agent must see.

python examples/web_shop/main.py
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
from agl_scripted import ModelEndpoint, real_or_scripted
from shop import make_goals
from shop_agent import client, make_agent
from shop_model import answer

WINDOWS = {"all": None, "8 pages": 8, "2 pages": 2}


def measure(model: ModelEndpoint, window: str, goals: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the agent on all goals with a window; return the means."""
    trainer = agl.Trainer(strategy="shm", n_runners=4, proxy=model.behind_proxy())
    outcome = trainer.evaluate(make_agent(WINDOWS[window]), goals, resources={})
    calls = [
        [span.attributes for span in one.spans if span.name == semconv.SPAN_MODEL_CALL]
        for one in outcome
    ]
    tokens = sum(int(str(c.get("gen_ai.usage.input_tokens", 0))) for one in calls for c in one)
    return {
        "window": window,
        "reward": outcome.score().mean,
        "bought": sum((one.reward or 0.0) > 0 for one in outcome) / len(outcome),
        "steps": sum(map(len, calls)) / len(outcome),
        "longest": max(map(len, calls)),
        "tokens": tokens / len(outcome),
        "failed": sum(one.reward is None for one in outcome),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure long episodes in a web shop.")
    parser.add_argument("--goals", type=int, default=10, help="episodes for each window")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    goals = make_goals(options.goals)
    started = time.monotonic()
    with real_or_scripted(answer, "gpt-4.1-mini") as model:
        rows = [measure(model, window, goals) for window in WINDOWS]
    client().close()
    if options.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print(f"{len(rows) * len(goals)} episodes in {time.monotonic() - started:.1f} s\n")
    print("window   reward  bought  steps  longest  tokens  failed")
    for row in rows:
        means = f"{row['reward']:6.2f} {row['bought']:7.2f} {row['steps']:6.1f}"
        counts = f"{row['longest']:8} {row['tokens']:7.0f} {row['failed']:7}"
        print(f"{row['window']:8} {means} {counts}")


if __name__ == "__main__":
    main()
