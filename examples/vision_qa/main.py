"""Questions about pictures, by chat and by responses, rewarded by an exact and a judged match.

python examples/vision_qa/main.py
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
from pictures import make_questions
from vision_agent import MATCHES, PROTOCOLS, make_agent
from vision_model import answer


def measure(
    model: ModelEndpoint, protocol: str, match: str, questions: list[dict[str, Any]]
) -> dict[str, Any]:
    """Run the agent on all questions; return the means."""
    agent = make_agent(protocol, match, judge=model)
    trainer = agl.Trainer(strategy="shm", concurrency=8, proxy=model.behind_proxy())
    outcome = trainer.evaluate(agent, questions, resources={})
    calls = [
        str(span.attributes.get("gen_ai.input.messages"))
        for one in outcome
        for span in one.spans
        if span.name == semconv.SPAN_MODEL_CALL
    ]
    return {
        "protocol": protocol,
        "match": match,
        "reward": outcome.score().mean,
        "calls": len(calls),
        "pictures": sum("image/png" in call for call in calls),
        "failed": sum(one.reward is None for one in outcome),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a model about pictures.")
    parser.add_argument("--questions", type=int, default=24, help="how many, for each row")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    questions = make_questions(options.questions)
    started = time.monotonic()
    with real_or_scripted(answer, "gpt-4.1-mini") as model:
        ways = [(protocol, match) for protocol in PROTOCOLS for match in MATCHES]
        rows = [measure(model, *way, questions) for way in ways]
    if options.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print(f"{len(rows) * len(questions)} rollouts in {time.monotonic() - started:.1f} s\n")
    print("protocol   match   reward  calls  pictures  failed")
    for row in rows:
        counts = f"{row['calls']:6} {row['pictures']:9} {row['failed']:7}"
        print(f"{row['protocol']:10} {row['match']:6} {row['reward']:7.2f} {counts}")


if __name__ == "__main__":
    main()
