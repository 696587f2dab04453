"""Predictions beside real runs: a trainer, runners, a proxy and model servers on this machine.

One recorded run is fitted; the others are predicted before they begin. Model servers that are
limited to some calls at a time answer over HTTP after a delay. ``AGL_TEST_SIMULATE=full`` runs all
settings with longer durations; it takes seven minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import ExitStack
from heapq import heapify, heapreplace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import aiohttp
import pytest

import agl_core as agl
from agl_core.types import EnqueueRolloutRequest, RolloutConfig
from agl_scripted import Reply, ScriptedModels
from agl_simulate import Cluster, Mode, fit, simulate
from agl_store_sqlite import SqliteLightningStore

pytestmark = [pytest.mark.slow, pytest.mark.timing, pytest.mark.timeout(900)]

FULL = os.environ.get("AGL_TEST_SIMULATE") == "full"
SCALE = 1.5 if FULL else 0.5
"""Factor of all durations. Long ones keep the machine's own delays small beside them."""
SERVER_LIMIT = 4
UPDATE_SECONDS = 1.2 * SCALE
CONFIG = RolloutConfig(max_attempts=2, retry_condition=["failed"])


class LimitedServer:
    """Replies after a delay; calls beyond the limit wait for their turn."""

    def __init__(self) -> None:
        self._free = [0.0] * SERVER_LIMIT
        heapify(self._free)
        self._random = random.Random(3)

    def __call__(self, seen: object) -> Reply:
        now = time.monotonic()
        begin = max(now, self._free[0])
        end = begin + self._random.uniform(0.3, 0.7) * SCALE
        heapreplace(self._free, end)
        return Reply("ok", delay=end - now)


class Agent(agl.LitAgent[Any]):
    """Works, calls the model twice, and fails in one of 12 attempts."""

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        url = resources["llm"].get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        body = {"model": "q", "messages": [{"role": "user", "content": str(task)}]}
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                await asyncio.sleep(random.uniform(0.2, 0.6) * SCALE)
                async with session.post(f"{url}/chat/completions", json=body) as reply:
                    assert reply.status == 200
                    await reply.read()
        if random.random() < 1 / 12:
            raise ValueError("a bad day")
        return 1.0


class Batches(agl.Algorithm):
    """Runs batches; an update takes a while."""

    def __init__(self, batches: int, size: int, mode: Mode) -> None:
        self.batches = batches
        self.size = size
        self.overlaps = mode == "overlap"
        self.seconds = 0.0

    @agl.with_llm_proxy(required=True)
    async def run(self, llm_proxy: Any, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await store.add_resources({"llm": llm_proxy.as_resource()})
        while not (await store.query_workers()).total:
            await asyncio.sleep(0.02)

        async def collect() -> None:
            requests = [EnqueueRolloutRequest(input=i, config=CONFIG) for i in range(self.size)]
            ids = [each.rollout_id for each in await store.enqueue_many_rollouts(requests)]
            assert len(await store.wait_for_rollouts(rollout_ids=ids, timeout=300)) == self.size

        began = time.monotonic()
        collecting = asyncio.ensure_future(collect())
        for left in range(self.batches - 1, -1, -1):
            await collecting
            if left and self.overlaps:
                collecting = asyncio.ensure_future(collect())
            await asyncio.sleep(UPDATE_SECONDS)
            if left and not self.overlaps:
                collecting = asyncio.ensure_future(collect())
        self.seconds = time.monotonic() - began


class Setting(NamedTuple):
    runners: int
    servers: int
    mode: Mode
    batches: int
    batch: int


RECORDED = Setting(12, 1, "sync", 4, 24)
PREDICTED = [
    Setting(2, 1, "sync", 2, 8),
    Setting(4, 1, "sync", 3, 16),
    Setting(24, 1, "sync", 3, 32),
    Setting(8, 2, "sync", 4, 24),
    Setting(24, 2, "overlap", 4, 48),
    Setting(8, 1, "overlap", 4, 16),
    Setting(16, 3, "sync", 4, 48),
]


CHOSEN = PREDICTED if FULL else PREDICTED[2:4]
TOLERANCE = 0.15 if FULL else 0.25


def run(setting: Setting, file: Path) -> float:
    """Run a setting for real; return the rollouts per second."""
    algorithm = Batches(setting.batches, setting.batch, setting.mode)
    with ExitStack() as stack:
        models = [
            stack.enter_context(ScriptedModels(LimitedServer())) for _ in range(setting.servers)
        ]
        trainer = agl.Trainer(
            algorithm=algorithm,
            store=SqliteLightningStore(file),
            n_runners=1,
            concurrency=setting.runners,
            strategy={"type": "cs", "server_port": 0},
            llm_proxy={
                "model_list": [
                    {
                        "model_name": "q",
                        "litellm_params": {"model": "hosted_vllm/Q", "api_base": each.base_url},
                    }
                    for each in models
                ]
            },
        )
        trainer.fit(Agent())
    return setting.batches * setting.batch / algorithm.seconds


def test_predictions_come_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = run(RECORDED, tmp_path / "recorded.db")

    async def fit_recorded() -> Any:
        store = SqliteLightningStore(tmp_path / "recorded.db")
        try:
            return await fit(store, servers=RECORDED.servers)
        finally:
            await store.close()

    workload = asyncio.run(fit_recorded())
    with capsys.disabled():
        print(
            f"\nrecorded: {RECORDED}, {measured:.2f} rollouts/s; the limit of a server is "
            f"{SERVER_LIMIT}, fitted as {workload.server_limit}"
        )
    predictions = []
    for setting in CHOSEN:
        cluster = Cluster(setting.runners, setting.servers, setting.mode, setting.batch)
        rollouts = setting.batches * setting.batch
        predictions.append(
            fmean(
                simulate(workload, cluster, rollouts=rollouts, seed=seed).rollouts_per_second
                for seed in range(20)
            )
        )
    errors = []
    for number, (setting, predicted) in enumerate(zip(CHOSEN, predictions, strict=True)):
        found = run(setting, tmp_path / f"{number}.db")
        errors.append(predicted / found - 1)
        with capsys.disabled():
            print(
                f"{setting.runners:3} runners, {setting.servers} servers, {setting.mode:8} batches "
                f"of {setting.batch:3}: predicted {predicted:6.2f}, measured {found:6.2f} "
                f"rollouts/s, {errors[-1]:+.1%}",
                flush=True,
            )
    assert max(map(abs, errors)) <= TOLERANCE
