"""A store, two snapshots, and a runner that answers with the reward of a function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agl_algorithm_kit import StoredRun
from agl_core.algorithm import RunContext
from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout, PromptTemplate, Span, task_digest
from agl_promote import Decision, Experiment, Plan, Promotion
from agl_promote.experiment import run_name

TASKS = [{"id": number, "country": "nl" if number % 4 == 0 else "de"} for number in range(60)]
REWARD = {"agentlightning.reward.0.name": "primary"}

Rewards = Callable[[Any, str], float | None]


async def with_prompts(store: LightningStore) -> LightningStore:
    for name in ("night/v0", "night/v1", "night/v2"):
        prompt = PromptTemplate(template=name, engine="f-string")
        await store.update_resources(name, {"prompt": prompt})
    return store


@asynccontextmanager
async def runner(
    store: LightningStore, reward_of: Rewards, attributes: Mapping[str, Any] | None = None
) -> AsyncIterator[None]:
    async def work() -> None:
        while True:
            claimed = await store.dequeue_rollout("w", wait=5)
            if claimed is None:
                continue
            attempt = asyncio.ensure_future(run(claimed))
            try:
                await asyncio.shield(attempt)
            except asyncio.CancelledError:
                await attempt  # one that stays open would be waited for
                raise

    async def run(claimed: AttemptedRollout) -> None:
        value = reward_of(claimed.input, str(claimed.resources_id))
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        if value is not None:
            span = Span.from_attributes(
                name="agentlightning.annotation",
                attributes={
                    **REWARD,
                    "agentlightning.reward.0.value": value,
                    **(attributes or {}),
                },
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                sequence_id=1,
            )
            await store.add_span(span)
        status = "failed" if value is None else "succeeded"
        await store.update_attempt(rollout_id, attempt_id, status=status)

    worker = asyncio.create_task(work())
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait({worker})


@pytest.fixture
def plan() -> Callable[..., Plan]:
    def make(**options: Any) -> Plan:
        return Plan(
            **{
                "name": "booking",
                "champion": "night/v0",
                "candidate": "night/v1",
                "tasks": [task_digest(task) for task in TASKS],
                "reward_range": (0, 1),
                "batch": 8,
                **options,
            }
        )

    return make


async def decide(store: LightningStore, name: str = "booking") -> Decision | None:
    """Run a promotion in a store that has a runner, as a process would."""
    promotion = await Promotion.open(store, name)
    experiment = Experiment(promotion)
    run = await StoredRun.open(store, run_name(promotion))
    experiment.set_context(RunContext(store=store, run=run))
    await experiment.run(train_dataset=TASKS)
    return experiment.decision
