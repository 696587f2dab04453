"""The next step's rollouts run while a step trains; rows record the age of their weights."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from openai import OpenAI

import agl_core as agl
from agl_algo_grpo import GRPO, GRPOConfig, update as update_module
from agl_algo_grpo.batches import Row
from agl_algo_grpo.serving import Serving
from agl_core.errors import ConfigError

TINY: dict[str, Any] = {
    "tasks_per_step": 2,
    "group_size": 4,
    "learning_rate": 1e-3,
    "max_tokens": 4,
    "server": {"type": "hf", "threads": 1},
    "threads": 1,
}
SECONDS = 120  # longest wait for another thread


class Trainings:
    """Replaces the update of GRPO: calls a function before each, and keeps its rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
        self.rows: list[Sequence[Row]] = []
        update = update_module.update

        def replacement(policy: Any, rows: Any, config: GRPOConfig, step: int) -> dict[str, float]:
            self.rows.append(rows)
            before(step)
            return update(policy, rows, config, step)

        monkeypatch.setattr(update_module, "update", replacement)

    def staleness(self) -> list[set[int]]:
        return [{row.staleness for row in rows} for rows in self.rows]


def call(llm: agl.LLM) -> str:
    with OpenAI(base_url=llm.endpoint, api_key="-", max_retries=0, timeout=60) as client:
        messages: Any = [{"role": "user", "content": "Go."}]
        answer = client.chat.completions.create(model=llm.model, messages=messages)
    return answer.choices[0].message.content or ""


def train(folder: Path, model: Path, agent: Any, *, runners: int = 8, **options: Any) -> GRPO:
    algorithm = GRPO(model=model, output_dir=str(folder), **{**TINY, **options})
    trainer = agl.Trainer(
        algorithm=algorithm, adapter="trajectory", strategy="shm", n_runners=runners
    )
    trainer.fit(agent, list(range(12)))
    return algorithm


def test_the_next_steps_rollouts_run_while_a_step_trains(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock, started, of_step_1 = threading.Lock(), 0, threading.Event()

    @agl.rollout
    def agent(task: int, llm: agl.LLM) -> float:
        nonlocal started
        with lock:
            started += 1
            if started > 8:
                of_step_1.set()
        return len(call(llm)) / 10

    overlapped: list[bool] = []

    def wait_for_step_1(step: int) -> None:
        if step == 0:
            overlapped.append(of_step_1.wait(SECONDS))

    trainings = Trainings(monkeypatch, wait_for_step_1)
    algorithm = train(tmp_path, taught, agent, steps=3, overlap=1)
    assert overlapped == [True]
    assert trainings.staleness() == [{0}, {1}, {1}]
    assert algorithm.metrics is not None
    assert [row["staleness"] for row in algorithm.metrics.steps] == [0, 1, 1]
    assert [row["rollouts"] for row in algorithm.metrics.steps] == [8, 8, 8]


def test_without_overlap_no_rollout_runs_while_a_step_trains(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock, started = threading.Lock(), 0

    @agl.rollout
    def agent(task: int, llm: agl.LLM) -> float:
        nonlocal started
        with lock:
            started += 1
        return len(call(llm)) / 10

    counts: list[int] = []
    trainings = Trainings(monkeypatch, lambda step: counts.append(started))
    train(tmp_path, taught, agent, steps=2)
    assert counts == [8, 16]
    assert trainings.staleness() == [{0}, {0}]


def test_a_partial_rollout_goes_on_with_new_weights(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The weights of step 1 are published between the two calls of each rollout of step 1."""
    lock, calls, published = threading.Lock(), 0, threading.Event()
    all_called = threading.Event()
    publish = Serving.publish

    async def noted(self: Serving, weights: Mapping[str, Path], version: str) -> float:
        if version == "step-1":
            assert await asyncio.to_thread(all_called.wait, SECONDS)
        seconds = await publish(self, weights, version)
        if version == "step-1":
            published.set()
        return seconds

    monkeypatch.setattr(Serving, "publish", noted)

    @agl.rollout
    def agent(task: int, llm: agl.LLM) -> float:
        nonlocal calls
        first = call(llm)
        with lock:
            calls += 1
            late = calls > 8
            if calls == 16:
                all_called.set()
        if late:
            assert published.wait(SECONDS)
        return (len(first) + len(call(llm))) / 10

    trainings = Trainings(monkeypatch, lambda step: None)
    algorithm = train(tmp_path, taught, agent, steps=2, overlap=1, partial_rollouts=True)
    assert algorithm.metrics is not None
    assert [row["rollouts"] for row in algorithm.metrics.steps] == [8, 8]
    assert trainings.staleness()[0] == {0}
    # Each call is a row of its own: the first is one update older than the second.
    assert sorted(row.staleness for row in trainings.rows[1]) == [0] * 8 + [1] * 8


@pytest.mark.parametrize(
    "options", [{"partial_rollouts": True}, {"overlap": 1, "temperature": 0.7}, {"overlap": 2}]
)
def test_options_that_cannot_be_combined_are_refused(options: dict[str, Any]):
    with pytest.raises(ConfigError, match="overlap"):
        GRPO(model="m", **options)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_overlap_hides_the_shorter_of_sampling_and_training(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Sampling and training are simulated: both wait for the same time."""
    seconds = 4.0

    @agl.rollout
    def agent(task: int, llm: agl.LLM) -> float:
        time.sleep(seconds)
        return len(call(llm)) / 10

    Trainings(monkeypatch, lambda step: time.sleep(seconds))
    step_seconds: dict[int, float] = {}
    for overlap in (0, 1):
        algorithm = train(tmp_path / str(overlap), taught, agent, steps=6, overlap=overlap)
        assert algorithm.metrics is not None
        # The first step has no training to overlap with, the last no rollouts.
        step_seconds[overlap] = fmean(row["seconds"] for row in algorithm.metrics.steps[1:-1])
    ratio = step_seconds[1] / step_seconds[0]
    print(f"seconds of a step: {step_seconds[0]:.2f} and {step_seconds[1]:.2f}, {ratio:.2f}x")
    assert ratio <= 0.6
