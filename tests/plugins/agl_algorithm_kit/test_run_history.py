"""The history of a run: what it was composed of, its metrics over steps, how it ended."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import pytest

from agl_algorithm_kit import Baseline, history as history_module, stored_runs
from agl_algorithm_kit.history import RunHistory
from agl_core.agent import LitAgent
from agl_core.algorithm import Algorithm, algo
from agl_core.errors import StoreUnavailableError
from agl_core.plugins import ComponentConfig, configured_by, notify
from agl_core.trainer import Trainer
from agl_core.types import Checkpoint
from agl_store_memory import InMemoryLightningStore


class Agent(LitAgent[Any]):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return task / 10


solve = Agent()


class Options(ComponentConfig):
    """Options of the algorithm below."""

    steps: int = 3
    api_key: str = ""
    max_tokens: int = 9
    endpoint: str = ""


class Reporting(Algorithm):
    """Reports a metric per step."""

    @configured_by(Options)
    def __init__(self, config: Options) -> None:
        self.config = config

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        for step in range(self.config.steps):
            self.report_step(step, {"loss": 1 / (step + 1), "broken": math.nan})
        if self.config.steps == 0:
            raise RuntimeError("no steps")


async def stored(store: Any, run: str) -> dict[str, Any]:
    snapshot = await store.get_resources_by_id(f"history:{run}")
    checkpoint = snapshot.resources["history"]
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint.state | {"metrics": checkpoint.metrics}


def test_a_named_run_keeps_its_parts_its_metrics_and_its_end():
    store = InMemoryLightningStore()
    algorithm = Reporting(steps=3, api_key="sk-1", endpoint="https://me:p@ss@host/v1")
    trainer = Trainer(algorithm=algorithm, store=store, strategy="shm", run="night")
    trainer.resume_command = "agl train x.toml --run night --resume"
    trainer.fit(solve)
    said = asyncio.run(stored(store, "night"))
    assert said["steps"] == [0, 1, 2]
    assert said["series"] == {"loss": [1.0, 0.5, 0.333333]}
    assert said["metrics"] == {"loss": 1 / 3}
    assert (said["status"], said["error"], said["mode"]) == ("finished", None, "fit")
    assert said["began"] <= said["ended"]
    assert said["command"] == trainer.resume_command
    assert said["parts"]["store"]["type"] == "InMemoryLightningStore"
    assert said["parts"]["algorithm"] == {
        "type": "Reporting",
        "config": {
            "steps": 3,
            "api_key": "[redacted]",
            "max_tokens": 9,
            "endpoint": "https://***@host/v1",
        },
    }
    assert {"tracer", "strategy", "store"} <= said["parts"].keys()
    # It is neither a run nor what agents receive.
    assert list(asyncio.run(stored_runs(store))) == ["night"]
    assert asyncio.run(store.get_latest_resources()) is None


def test_steps_of_a_function_are_kept_and_a_resumed_run_continues_its_history():
    store = InMemoryLightningStore()
    steps = [[0, 1, 2], [2, 3]]

    @algo
    async def reporting(*, run: Any) -> None:
        for step in steps[0]:
            notify("algorithm_step", algorithm="f", step=step, metrics={"m": step + len(steps)})
            notify("algorithm_step", algorithm="f", step=step, metrics={"n": 1.0})
        steps.pop(0)
        if steps:
            raise RuntimeError("crash")

    def fit() -> None:
        Trainer(algorithm=reporting, store=store, strategy="shm", run="night").fit(solve)

    with pytest.raises(RuntimeError, match="crash"):
        fit()
    failed = asyncio.run(stored(store, "night"))
    assert (failed["status"], failed["error"]) == ("failed", "RuntimeError: crash")
    assert failed["series"]["m"] == [2, 3, 4]
    fit()
    said = asyncio.run(stored(store, "night"))
    assert said["steps"] == [0, 1, 2, 3]
    assert said["series"] == {"m": [2, 3, 3, 4], "n": [1, 1, 1, 1]}
    assert (said["status"], said["error"]) == ("finished", None)


def test_a_run_without_a_name_keeps_no_history():
    store = InMemoryLightningStore()
    Trainer(algorithm=Reporting(), store=store, strategy="shm").fit(solve)
    assert asyncio.run(store.query_resources()).total == 0


def test_the_options_of_a_class_that_keeps_them_as_attributes_are_shown():
    store = InMemoryLightningStore()
    baseline = Baseline(n_epochs=2)
    trainer = Trainer(
        algorithm=baseline, store=store, strategy="shm", run="base", initial_resources={}
    )
    trainer.fit(solve, [1, 2])
    said = asyncio.run(stored(store, "base"))
    assert said["parts"]["algorithm"]["config"]["n_epochs"] == 2
    assert said["steps"] == [0, 1]


async def test_two_runs_in_one_process_keep_their_own_steps():
    store = InMemoryLightningStore()

    async def one(name: str, value: float) -> None:
        async with RunHistory(store, name, {}).recording():
            for step in range(3):
                notify("algorithm_step", algorithm=name, step=step, metrics={"v": value})
                await asyncio.sleep(0)

    await asyncio.gather(one("a", 1.0), one("b", 2.0))
    assert (await stored(store, "a"))["series"] == {"v": [1, 1, 1]}
    assert (await stored(store, "b"))["series"] == {"v": [2, 2, 2]}


async def test_a_long_run_keeps_points_that_are_evenly_spaced_and_the_newest():
    store = InMemoryLightningStore()
    async with RunHistory(store, "long", {}).recording():
        for step in range(5, 4006, 5):
            notify("algorithm_step", algorithm="x", step=step, metrics={"v": float(step)})
    said = await stored(store, "long")
    steps = said["steps"]
    assert 200 < len(steps) <= history_module._MOST_POINTS
    assert (steps[0], steps[-1]) == (5, 4005)
    assert len({b - a for a, b in pairwise(steps[:-1])}) == 1
    assert said["series"]["v"] == steps


async def test_a_step_is_in_the_store_within_a_second():
    store = InMemoryLightningStore()
    async with RunHistory(store, "live", {}).recording():
        for step in range(3):
            notify("algorithm_step", algorithm="x", step=step, metrics={"v": 1.0})
            async with asyncio.timeout(1):
                while (await stored(store, "live"))["steps"] != list(range(step + 1)):
                    await asyncio.sleep(0.02)
        assert (await stored(store, "live"))["status"] == "running"


async def test_an_interrupted_run_says_so():
    store = InMemoryLightningStore()
    entered = asyncio.Event()

    async def work() -> None:
        async with RunHistory(store, "night", {}).recording():
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    await asyncio.wait({task})
    said = await stored(store, "night")
    assert said["status"] == "interrupted"
    assert said["ended"] is not None


async def test_a_store_that_is_gone_does_not_end_the_run(caplog):
    class Gone(InMemoryLightningStore):
        async def update_resources(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("gone")

    async with RunHistory(Gone(), "night", {}).recording():
        notify("algorithm_step", algorithm="x", step=0, metrics={"v": 1.0})
    assert "The history of the run is not written: gone" in caplog.text
