"""Compares retrieving once with searching often, on questions of one to three hops.

python examples/search_agent/main.py
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
from pages import make_questions
from search_agent import AGENTS, client, index
from search_model import answer


def measure(model: ModelEndpoint, agent: str, questions: list[Any]) -> list[dict[str, Any]]:
    """Run an agent on all questions; return a row for each number of hops."""
    trainer = agl.Trainer(strategy="shm", n_runners=4, proxy=model.behind_proxy())
    outcome = trainer.evaluate(AGENTS[agent], questions, resources={})
    rows: list[dict[str, Any]] = []
    for hops in sorted({task["hops"] for task in questions}):
        chosen = [one for task, one in zip(questions, outcome, strict=True) if task["hops"] == hops]
        spans = [span for one in chosen for span in one.spans]
        calls = sum(span.name == semconv.SPAN_MODEL_CALL for span in spans)
        searches = sum(span.attributes.get(semconv.OPERATION_NAME) == "search" for span in spans)
        rows.append(
            {
                "agent": agent,
                "hops": hops,
                "exact": sum(one.reward or 0.0 for one in chosen) / len(chosen),
                "calls": calls / len(chosen),
                "searches": searches / len(chosen),
                "failed": sum(one.reward is None for one in chosen),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare two ways to use an index.")
    parser.add_argument("--questions", type=int, default=30, help="how many, for each agent")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    questions = make_questions(options.questions)
    started = time.monotonic()
    with real_or_scripted(answer, "gpt-4.1-mini") as model:
        rows = [row for agent in AGENTS for row in measure(model, agent, questions)]
    client().close()
    index().close()
    if options.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print(f"{2 * len(questions)} rollouts in {time.monotonic() - started:.1f} s\n")
    print("agent          hops  exact  calls  searches  failed")
    for row in rows:
        means = f"{row['exact']:6.2f} {row['calls']:6.1f} {row['searches']:9.1f} {row['failed']:7}"
        print(f"{row['agent']:14} {row['hops']:4} {means}")


if __name__ == "__main__":
    main()
