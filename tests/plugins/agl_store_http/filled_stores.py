"""Stores with one of everything, and with rewards by a judge and by an agent itself."""

from __future__ import annotations

import json
import math
from typing import Any

from agl_core.emitter import find_final_reward
from agl_core.semconv import PRIMARY_REWARD_VALUE
from agl_core.store import LightningStore
from agl_core.types import LLM, Checkpoint, PromptTemplate, RolloutConfig, Span
from agl_serving import mint_token
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_http.transfer import export_records

SECRET = "a secret of more than sixteen characters"


async def fill(store: LightningStore) -> None:
    """Put one of everything into a store."""
    first = await store.add_resources({"prompt": PromptTemplate(template="", engine="f-string")})
    await store.add_resources(
        {
            "prompt": PromptTemplate(template="{q} ü", engine="f-string"),
            "model": LLM(endpoint="http://x", model="m", sampling_parameters={"t": 0.1}),
        }
    )
    await store.update_resources("run:night", {"checkpoint": Checkpoint(state={"epoch": [1]})})
    config = RolloutConfig(max_attempts=3, retry_condition=["failed"], timeout_seconds=60)
    for number in range(3):
        await store.enqueue_rollout(
            {"q": number, "nested": [1.5, None, "\n"]}, "train", config=config, metadata={"n": 1}
        )
    for ending in ("failed", "succeeded"):
        claimed = await store.dequeue_rollout("Worker-0")
        assert claimed is not None
        for number in range(3):
            await store.add_span(
                Span.from_attributes(
                    name=f"step {number}",
                    attributes={"reward": math.inf if number == 2 else 0.1 + 0.2, "text": "ü\x00"},
                    rollout_id=claimed.rollout_id,
                    attempt_id=claimed.attempt.attempt_id,
                    sequence_id=number + 1,
                    start_time=1700000000.123456,
                )
            )
        await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status=ending, metadata={"why": ending}
        )
    await store.update_worker("Worker-0", {"cpu": 0.5})
    # It becomes the latest again.
    await store.update_resources(first.resources_id, first.resources)
    await store.enqueue_rollout("late", "val")


async def content(store: LightningStore) -> list[tuple[str, Any]]:
    return [(record.kind, json.loads(record.json)) async for record in export_records(store)]


async def judge(store: LightningStore) -> None:
    """Serve a store and let a judge and an agent reward a rollout; another one gets 0.5."""
    server = LightningStoreServer(store, port=0, auth_token=SECRET)
    await server.start()
    judge = LightningStoreClient(server.endpoint, auth_token=SECRET)
    clients = [judge]

    async def reward(client: LightningStore, ids: Any, value: float) -> None:
        number = await client.get_next_span_sequence_id(*ids)
        span = Span.from_attributes(
            attributes={PRIMARY_REWARD_VALUE: value},
            **dict(zip(("rollout_id", "attempt_id"), ids, strict=True)),
            sequence_id=number,
        )
        await client.add_span(span)

    for values in [(0.1, 1e6), (0.5,)]:
        started = await judge.start_rollout("x", metadata={"judged": values[0]})
        ids = (started.rollout_id, started.attempt.attempt_id)
        token = mint_token(SECRET, "attempt", lifetime=60, rollout_id=ids[0], attempt_id=ids[1])
        agent = LightningStoreClient(server.endpoint, auth_token=token)
        clients.append(agent)
        await reward(judge, ids, values[0])
        for value in values[1:]:
            await reward(agent, ids, value)
        await judge.update_attempt(*ids, status="succeeded")
        for value in values[1:]:
            await reward(agent, ids, value)  # late
    for client in clients:
        await client.close()
    await server.stop()


async def rewards(store: LightningStore) -> list[tuple[float, float | None]]:
    """Return what each rollout was given and what counts, best first."""
    page = await store.query_rollouts(sort_by="reward", sort_order="desc")
    found: list[tuple[float, float | None]] = []
    for rollout in page:
        spans = (await store.query_spans(rollout.rollout_id)).items
        assert rollout.metadata is not None
        found.append((rollout.metadata["judged"], find_final_reward(spans)))
    return found


JUDGED = [(0.5, 0.5), (0.1, 0.1)]
