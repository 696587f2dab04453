"""Measures what the framework adds to the model calls of a training step.

128 rollouts of two calls of the model of ``examples/rl_digits``, in several ways, alternating in
one run: the OpenAI client straight at the server, the same calls through the proxy, through a
runner as well, and up to the rows that are trained on; the last three with the proxy in a thread
and in a process of its own. The ratios are to the first. CPU time of a proxy's own process is not
counted.

Run ``python tests/benchmark/bench_rollouts.py [--model FOLDER]`` in the environment of
``agl_algo_grpo``. Without a folder it first builds the model, in half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "rl_digits"))

import psutil
import pytest

pytest.importorskip("torch", reason="agl_algo_grpo has an environment of its own")

import agl_core as agl
from agl_adapter_trajectory import TraceToTrajectory
from agl_algo_grpo import GRPOConfig
from agl_algo_grpo.rollouts import Rollouts
from agl_algo_grpo.serving import Backend, Serving, build_server
from agl_algorithm_kit import run_batch
from agl_core.algorithm import Run
from agl_core.types import LLM, ProxyLLM
from agl_proxy_direct import DirectProxy
from agl_serving import LaunchMode

ROLLOUTS = 128
PARTS = {
    "straight": "agents",
    "agl-agent": "agents",
    "agl-server": "proxy",
    "agl-server-link": "proxy",
    "MainThread": "runner",
    "agl-span-exporter": "tracer",
    "algorithm": "algorithm",
}
"""Part of the framework by the name of its threads."""
PROXY_MODES: tuple[LaunchMode, ...] = ("thread", "mp")
TRACED = {True: "proxy and tracer record each call", "direct": "the proxy records each call"}
"""The recorder of the calls by the tracer's option ``model_calls``."""


class Measured(agl.Algorithm):
    """Alternates between the ways; fills :attr:`seconds`."""

    def __init__(self, model: Path, at_a_time: int, rounds: int) -> None:
        self.model = model
        self.at_a_time = at_a_time
        self.rounds = rounds
        self.seconds: dict[str, list[float]] = {}
        self.cpu_ms: dict[str, Counter[str]] = {}

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        from digits import train_tasks

        self.tasks = train_tasks()[:ROLLOUTS]
        self.config = GRPOConfig(model=str(self.model), max_tokens=16, group_size=8, seed=0)
        server = build_server({"type": "hf", "threads": 1, "seed": 0}, self.model)
        backend = Backend(server, [self.config.resource])
        proxies = {
            mode: DirectProxy(store=self.get_store(), launch_mode=mode) for mode in PROXY_MODES
        }
        servings = {mode: Serving([backend], proxy, self.config) for mode, proxy in proxies.items()}
        self.pool = ThreadPoolExecutor(self.at_a_time, "straight")
        async with AsyncExitStack() as stack:
            for serving in servings.values():
                await stack.enter_async_context(serving.running())
            self.straight = LLM(
                endpoint=server.base_url,
                model=server.model,
                sampling_parameters={"temperature": 1.0, "max_tokens": 16},
            )
            ways: dict[str, Callable[[str], Awaitable[float]]] = {
                "the OpenAI client at the server": self._straight
            }
            for mode, serving in servings.items():
                ways |= {
                    f"+ proxy ({mode})": partial(self._through_the_proxy, serving),
                    f"+ runner, tracer, store ({mode})": partial(self._as_rollouts, serving),
                    f"+ rows ({mode})": partial(self._with_rows, serving),
                }
            for number in range(self.rounds + 1):
                for name, way in ways.items():
                    before = _cpu_ms()
                    seconds = await way(f"{name} {number}")
                    used = _cpu_ms()
                    used.subtract(before)
                    if number:  # the first round warms up
                        self.seconds.setdefault(name, []).append(seconds)
                        self.cpu_ms.setdefault(name, Counter()).update(used)
        self.pool.shutdown()

    async def _calls(self, visits: list[Callable[[], float]]) -> float:
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self.pool, visit) for visit in visits))
        return time.perf_counter() - began

    async def _straight(self, name: str) -> float:
        from digits import visit

        return await self._calls(
            [lambda task=task: _reward(visit, task, self.straight) for task in self.tasks]
        )

    async def _through_the_proxy(self, serving: Serving, name: str) -> float:
        from digits import visit

        store = self.get_store()
        (llm,) = serving.as_resources().values()
        assert isinstance(llm, ProxyLLM)
        visits: list[Callable[[], float]] = []
        for task in self.tasks:
            started = await store.start_rollout(task)
            own = LLM(
                endpoint=llm.get_base_url(started.rollout_id, started.attempt.attempt_id),
                model=llm.model,
                sampling_parameters=llm.sampling_parameters,
            )
            visits.append(lambda task=task, own=own: _reward(visit, task, own))
        return await self._calls(visits)

    async def _as_rollouts(self, serving: Serving, name: str) -> float:
        began = time.perf_counter()
        await run_batch(
            self.get_store(),
            self.tasks,
            resources=serving.as_resources(),
            mode="train",
            name=name,
        )
        return time.perf_counter() - began

    async def _with_rows(self, serving: Serving, name: str) -> float:
        store: Any = self.get_store()
        adapter = self.get_adapter()
        assert isinstance(adapter, TraceToTrajectory)
        rollouts = Rollouts(store, serving, adapter, self.tasks, self.config, Run(store))
        began = time.perf_counter()
        steps = await rollouts.collect(0, self.tasks[:: self.config.group_size])
        seconds = time.perf_counter() - began
        step = steps[self.config.resource]
        assert len(step.rewards) == ROLLOUTS, step.describe_dropped()
        return seconds


def _reward(visit: Any, task: Any, llm: LLM) -> float:
    return visit.training_rollout(task, {"llm": llm}, None)


def _cpu_ms() -> Counter[str]:
    """Return the CPU time of this process so far in ms, by the part that used it."""
    names = {
        thread.native_id: thread.name.rstrip("0123456789-_") for thread in threading.enumerate()
    }
    used: Counter[str] = Counter()
    for thread in psutil.Process().threads():
        name = names.get(thread.id, "")
        used[PARTS.get(name, "other")] += round(1000 * (thread.user_time + thread.system_time))
    return used


def measure(model: Path, at_a_time: int, rounds: int, calls: Any) -> None:
    from digits import visit

    algorithm = Measured(model, at_a_time, rounds)
    trainer = agl.Trainer(
        algorithm=algorithm,
        adapter="trajectory",
        tracer={"type": "otel", "model_calls": calls},
        strategy="shm",
        concurrency=at_a_time,
    )
    trainer.fit(visit)
    print(
        f"\n{ROLLOUTS} rollouts of two calls, {at_a_time} at a time; median of {rounds}; "
        f"{TRACED[calls]}"
    )
    parts = list(dict.fromkeys(PARTS.values()))
    print(f"{'':36}{'':9}{'':7}  CPU of this process in ms per rollout")
    print(f"{'':36}{'seconds':>9}{'ratio':>7}" + "".join(f"{part:>10}" for part in ["all", *parts]))
    first = median(next(iter(algorithm.seconds.values())))
    for name, all_seconds in algorithm.seconds.items():
        used = algorithm.cpu_ms[name]
        columns = [sum(used.values()), *(used[part] for part in parts)]
        shares = "".join(f"{value / rounds / ROLLOUTS:10.2f}" for value in columns)
        seconds = median(all_seconds)
        print(f"{name:36}{seconds:9.3f}{seconds / first:7.2f}{shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[64, 2])
    options = parser.parse_args()
    from make_model import make_model

    with tempfile.TemporaryDirectory() as folder:
        model = options.model or make_model(Path(folder, "base"))
        for at_a_time in options.at_a_time:
            for calls in TRACED:
                measure(model, at_a_time, options.rounds, calls)


if __name__ == "__main__":
    main()
