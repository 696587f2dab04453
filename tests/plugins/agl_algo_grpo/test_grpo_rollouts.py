"""Batches that the infrastructure fails, and rollouts that a dead server lost; no real servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_algo_grpo import CreditConfig, GRPOConfig
from agl_algo_grpo.forks import Forks
from agl_algo_grpo.rollouts import Rollouts
from agl_algo_grpo.samples import Group, Learner, Reason, Step
from agl_algo_grpo.serving import Serving
from agl_core.algorithm import BatchOutcome, RolloutOutcome, Run
from agl_core.errors import RunFailedError
from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest
from agl_replay import NotReplayableError
from agl_scripted import Reply
from agl_store_memory import InMemoryLightningStore

from .test_grpo_credit import sample
from .test_grpo_samples import GOOD, once, outcome_of

STEP = 3
Answer = Callable[[int], RolloutOutcome]


class Calm:
    """What the rollouts see of the servers: none of them is dead unless a test says so."""

    def __init__(self, config: GRPOConfig) -> None:
        self.learners = {"llm": Learner(config, "m")}
        self.restarts = 0
        self.dead = 0

    def as_resources(self) -> dict[str, Any]:
        return {}

    async def ensure(self) -> None:
        self.restarts, self.dead = self.restarts + self.dead, 0


class Batches:
    """Answers batches: a function of the number of the batch makes each outcome."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Answer | None) -> None:
        self.names: list[str] = []
        self.sizes: list[int] = []
        self._answers = answers
        monkeypatch.setattr("agl_algo_grpo.rollouts.run_batch", self.run)
        monkeypatch.setattr("agl_algo_grpo.rollouts.run_requests", self.run)

    async def run(self, _: Any, tasks: Sequence[Any], *, name: str, **__: Any) -> BatchOutcome:
        answer = self._answers[len(self.names)]
        self.names.append(name)
        self.sizes.append(len(tasks))
        if answer is None:
            raise RunFailedError(f"{name}: all {len(tasks)} rollouts failed by the proxy")
        return BatchOutcome([answer(i) for i in range(len(tasks))])


def rollouts_of(**options: Any) -> tuple[Rollouts, Calm]:
    config = GRPOConfig(model="m", **{"group_size": 2, "tasks_per_step": 2, **options})
    serving, store = Calm(config), InMemoryLightningStore()
    rollouts = Rollouts(
        store, cast("Serving", serving), TraceToTrajectory(), list(range(9)), config, Run(store)
    )
    return rollouts, serving


async def good_and_lost() -> tuple[RolloutOutcome, RolloutOutcome]:
    good = await outcome_of([GOOD], once)
    failed = await outcome_of([GOOD], once, reward=None, status="failed")
    return good, replace(failed, infrastructure="proxy")


async def test_a_rollout_that_the_proxy_always_fails_is_dropped_and_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
):
    good, lost = await good_and_lost()
    batches = Batches(monkeypatch, lambda i: lost if i == 0 else good, None, None)
    rollouts, _ = rollouts_of(retries=2)
    found = (await rollouts.collect(STEP, [0, 1]))["llm"]
    assert batches.sizes == [4, 1, 1]
    assert found.dropped == {Reason.INFRASTRUCTURE: 1, Reason.SMALL_GROUP: 1}
    assert found.retried == {Reason.INFRASTRUCTURE: 2}
    assert [group.index for group in found.groups] == [1]


async def test_a_replacement_that_the_proxy_fails_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
):
    good, _ = await good_and_lost()
    other = replace(good, reward=0.1)
    # The first group teaches nothing.
    Batches(monkeypatch, lambda i: other if i == 3 else good, None)
    rollouts, _ = rollouts_of(retries=0, resample=1)
    found = (await rollouts.collect(STEP, [0, 1]))["llm"]
    assert [group.index for group in found.groups] == [1]
    assert found.dropped[Reason.INFRASTRUCTURE] == 2


async def test_a_step_whose_every_rollout_the_proxy_fails_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
):
    Batches(monkeypatch, None)
    rollouts, _ = rollouts_of()
    with pytest.raises(RunFailedError, match="step-3: all 4"):
        await rollouts.collect(STEP, [0, 1])


async def test_forks_that_the_proxy_fails_do_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    good, _ = await good_and_lost()
    batches = Batches(monkeypatch, lambda i: good if i % 2 else replace(good, reward=0.0), None)

    async def requests(*_: Any) -> list[tuple[int, EnqueueRolloutRequest]]:
        return [(0, EnqueueRolloutRequest(input=0))]

    monkeypatch.setattr(Forks, "requests", requests)
    rollouts, _ = rollouts_of(credit="forked")
    found = (await rollouts.collect(STEP, [0, 1]))["llm"]
    assert batches.sizes == [4, 1]
    assert len(found.samples) == 4
    assert found.dropped == {Reason.INFRASTRUCTURE: 1}


async def test_a_call_that_cannot_be_replayed_is_not_forked(monkeypatch: pytest.MonkeyPatch):
    async def refuse(
        store: LightningStore, rollout_id: str, **options: Any
    ) -> list[EnqueueRolloutRequest]:
        if rollout_id == "x":
            raise NotReplayableError("rollout x recorded no call of the span")
        return [EnqueueRolloutRequest(input=rollout_id)]

    monkeypatch.setattr("agl_replay.fork_requests_at", refuse)
    credit = CreditConfig(type="forked", choose="uniform", forks=9)
    config = GRPOConfig(model="m", credit=credit)
    forks = Forks(InMemoryLightningStore(), config)
    step = Step(groups=[Group(0, [sample("x", 1, "aBcDeF"), sample("y", 0, "aCcDeE")])])
    requests = await forks.requests(0, {"llm": step})
    assert {request.input for _, request in requests} == {"y"}
    assert forks.skipped["llm"] > 0


async def test_validation_repeats_what_a_dead_server_and_the_proxy_lost(
    monkeypatch: pytest.MonkeyPatch,
):
    good, lost = await good_and_lost()
    broken = await outcome_of([Reply(error_status=500)], once, reward=0.0)  # the agent went on
    failed = await outcome_of([GOOD], once, reward=None, status="failed")
    rollouts, serving = rollouts_of(retries=1)
    serving.dead = 1
    batches = Batches(
        monkeypatch,
        lambda i: [good, lost, broken, failed][i],
        lambda i: [good, good, failed][i],
    )
    (found,) = (await rollouts.validate(STEP, list(range(4)))).values()
    assert batches.sizes == [4, 3]
    assert found.earned == [0.5, 0.5, 0.5, None]  # the agent's own failure stays one


async def test_validation_repeats_no_failure_of_the_agent(monkeypatch: pytest.MonkeyPatch):
    good, _ = await good_and_lost()
    failed = await outcome_of([GOOD], once, reward=None, status="failed")
    batches = Batches(monkeypatch, lambda i: [good, failed][i])
    rollouts, _ = rollouts_of()
    (found,) = (await rollouts.validate(STEP, [0, 1])).values()
    assert batches.sizes == [2]
    assert found.earned == [0.5, None]


async def test_lost_validation_rollouts_are_repeated_no_more_often_than_others(
    monkeypatch: pytest.MonkeyPatch,
):
    good, lost = await good_and_lost()
    batches = Batches(monkeypatch, lambda i: [good, lost][i], None, None)
    rollouts, _ = rollouts_of(retries=2)
    (found,) = (await rollouts.validate(STEP, [0, 1])).values()
    assert batches.sizes == [2, 1, 1]
    assert found.earned == [0.5]
    assert len(set(batches.names)) == 3
