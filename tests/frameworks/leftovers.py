"""Trains twice in one process and prints the remaining changes to libraries as JSON; a program.

    python leftovers.py TRACER FRAMEWORK...

Trainings are real: a trainer with an algorithm that enqueues tasks, and a runner that runs them.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sys
from itertools import zip_longest
from typing import Any

from framework_harness import load, weather_script
from patch_snapshot import changes, snapshot

import agl_core as agl
from agl_adapters import TracerTraceToTriplet
from agl_scripted import ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_testing.network import loopback_only

PACKAGES = ("agents", "anthropic", "crewai", "langchain_core", "langgraph", "openai", "threading")


def tracer_spec(name: str) -> Any:
    return {"type": "otel", "instrument": "auto"} if name == "otel" else name


def train(tracer: str, framework: str, url: str) -> int:
    """Train once; return how many model calls were recorded."""
    ask = load(framework).ask

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        answer = await ask(url, task)
        return float("It is" in answer)

    store = InMemoryLightningStore()
    trainer = agl.Trainer(
        tracer=tracer_spec(tracer),
        store=store,
        strategy="shm",
        n_runners=1,
        algorithm="baseline",
        initial_resources={"llm": agl.LLM(endpoint=url, model="m")},
    )
    trainer.fit(agent, ["Paris", "Oslo"])

    async def calls() -> int:
        rollouts = await store.query_rollouts()
        adapter = TracerTraceToTriplet(llm_call_match=None)
        counts = [
            len(adapter.adapt(list(await store.query_spans(rollout.rollout_id))))
            for rollout in rollouts
        ]
        return sum(counts)

    return asyncio.run(calls())


def main(tracer: str, frameworks: list[str]) -> None:
    report: dict[str, Any] = {}
    if tracer != "otel":
        # Effects of the import alone (Weave adds hooks for moviepy) are not the tracer's.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        importlib.import_module(tracer)
    with ScriptedModels(weather_script) as models:
        for framework in frameworks:
            bare = asyncio.run(load(framework).ask(models.url, "Paris"))
            requests = _comparable(models)
            models.requests.clear()
            before = snapshot(*PACKAGES)
            calls = [train(tracer, framework, models.url) for _ in range(2)]
            left = changes(before, snapshot(*PACKAGES))
            models.requests.clear()
            again = asyncio.run(load(framework).ask(models.url, "Paris"))
            report[framework] = {
                "calls": calls,
                "left": left,
                "same_answer": again == bare,
                "other_requests": _differences(requests, _comparable(models)),
            }
            models.requests.clear()
    print(json.dumps(report))


def _comparable(models: ScriptedModels) -> list[Any]:
    """Return the requests to the server, byte for byte where the agent determines them.

    LangChain keeps one client for the whole process, whose connections end with the event loop
    that opened them. A request that is repeated for that reason counts once.
    """
    found: list[Any] = []
    for seen in models.requests:
        # The script numbers tool calls by request.
        body = re.sub(r"call_\d+", "call", json.dumps(seen.body))
        own = ("x-stainless-retry-count", "content-length")
        headers = {k: v for k, v in seen.headers.items() if k not in own}
        request = (seen.path, body, sorted(headers.items()))
        if not found or found[-1][:2] != request[:2]:
            found.append(request)
    return found


def _differences(before: list[Any], after: list[Any]) -> list[str]:
    return [f"{b} -> {a}" for b, a in zip_longest(before, after) if a != b]


if __name__ == "__main__":
    with loopback_only():
        main(sys.argv[1], sys.argv[2:])
