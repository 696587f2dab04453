"""Stores that override single calls alone, as code of version 0.3 does, behind whatever asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agl_core.agent import rollout
from agl_core.store import LightningStore, current_request_key
from agl_core.trainer import Trainer
from agl_core.types import AttemptedRollout, EnqueueRolloutRequest, Rollout, Span
from agl_store_http import LightningStoreClient
from agl_store_kit import LightningStoreThreaded
from agl_store_kit.batching import BatchingStore
from agl_store_memory import InMemoryLightningStore
from agl_store_sqlite import SqliteLightningStore


class Noting(BatchingStore):
    """Notes what it is asked for, and passes it on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[str] = []

    async def enqueue_rollout(
        self, input: Any, *args: Any, metadata: dict[str, Any] | None = None, **kwargs: Any
    ) -> Rollout:
        self.asked.append(f"enqueue {input}")
        return await super().enqueue_rollout(input, *args, metadata=metadata, **kwargs)

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.asked.append("dequeue")
        return await super().dequeue_rollout(worker_id)

    async def add_span(self, span: Span) -> Span | None:
        self.asked.append(f"span {span.name}")
        return await super().add_span(span)


class Asked(Noting, InMemoryLightningStore):
    """A store in memory that notes."""


class AskedInFile(Noting, SqliteLightningStore):
    """A store in a file that notes."""


class AskedBelow(Asked):
    """Passes the batch call of a store on that overrides the single one."""

    async def dequeue_many_rollouts(self, **kwargs: Any) -> Any:
        return await super().dequeue_many_rollouts(**kwargs)


REQUESTS = [EnqueueRolloutRequest(input="a"), EnqueueRolloutRequest(input="b")]
CLAIMS = ["dequeue", "dequeue", "dequeue"]


@pytest.mark.parametrize("kind", [Asked, AskedBelow])
@pytest.mark.parametrize("threaded", [False, True])
async def test_batches_ask_for_each_item(kind: type[Asked], threaded: bool) -> None:
    inner = kind()
    store: LightningStore = LightningStoreThreaded(inner) if threaded else inner
    made = await store.enqueue_many_rollouts(REQUESTS)
    assert inner.asked == ["enqueue a", "enqueue b"]
    claimed = await store.dequeue_many_rollouts(limit=5, worker_id="w", wait=0.1)
    assert [one.rollout_id for one in claimed] == [one.rollout_id for one in made]
    assert inner.asked[2:] == CLAIMS
    first, second = (
        Span.from_attributes(
            attributes={},
            rollout_id=one.rollout_id,
            attempt_id=one.attempt.attempt_id,
            sequence_id=1,
            name=one.input,
        )
        for one in claimed
    )
    assert await store.add_many_spans([first, second, first]) == [first, second]
    assert inner.asked[5:] == ["span a", "span b", "span a"]
    assert await store.dequeue_rollout("w") is None


async def test_one_key_of_a_batch_makes_each_record_once(tmp_path: Path) -> None:
    store = AskedInFile(str(tmp_path / "agl.db"))
    current_request_key.set("one")
    made = await store.enqueue_many_rollouts(REQUESTS)
    assert made[0].rollout_id != made[1].rollout_id
    assert await store.enqueue_many_rollouts(REQUESTS) == made
    current_request_key.set("two")
    claimed = await store.dequeue_many_rollouts(limit=2, worker_id="w")
    assert len(claimed) == 2
    again = await store.dequeue_many_rollouts(limit=2, worker_id="w")
    assert [one.attempt for one in again] == [one.attempt for one in claimed]
    await store.close()


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_runners_ask_it(strategy: str, concurrency: int) -> None:
    store = Asked()
    options = {"type": "cs", "server_port": 0, "main_process": "algorithm"}
    trainer = Trainer(
        store=store,
        strategy=options if strategy == "cs" else strategy,
        n_runners=1,
        concurrency=concurrency,
    )

    @rollout
    async def agent(task: str) -> float:
        return 1.0

    trainer.dev(agent, ["a", "b", "c"])
    assert {"enqueue a", "enqueue b", "enqueue c"} <= set(store.asked)
    assert store.asked.count("dequeue") >= 3
    assert sum(item.startswith("span") for item in store.asked) == 3


@pytest.mark.parametrize(
    "kind",
    [BatchingStore, InMemoryLightningStore, SqliteLightningStore, LightningStoreClient],
)
def test_stores_of_ours_keep_their_batches(kind: type[LightningStore]) -> None:
    calls = ("enqueue_many_rollouts", "dequeue_many_rollouts", "add_many_spans")
    for name in (*calls, "add_encoded_spans"):
        assert not hasattr(getattr(kind, name), "one_by_one"), name
