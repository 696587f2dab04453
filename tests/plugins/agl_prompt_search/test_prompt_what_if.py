"""Questions of a critic whose run or whose forks are not there: the search goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agl_core.algorithm import Run
from agl_core.types import AttemptedRollout, PromptTemplate, Span
from agl_prompt_search import ChatReply, Snapshots, Subject, WhatIf
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_prompt_search.two_turns import question, results

CHANGED = "Be careful with {question}"
REWARD = "agentlightning.reward.0.value"


def resources(version: str) -> dict[str, Any]:
    return {"prompt": PromptTemplate(template="Answer {question}", engine="f-string")}


async def add_span(
    store: InMemoryLightningStore, claimed: AttemptedRollout, **attributes: Any
) -> None:
    ids: dict[str, Any] = {
        "rollout_id": claimed.rollout_id,
        "attempt_id": claimed.attempt.attempt_id,
    }
    await store.add_span(
        Span.from_attributes(name="span", attributes=attributes, sequence_id=1, **ids)
    )


async def recorded(store: InMemoryLightningStore, call: str = "{}") -> str:
    """Store a rollout of one model call; return its id."""
    claimed = await store.start_rollout("task", resources_id="v0")
    await add_span(
        store, claimed, **{"agl.proxy.protocol": "chat", "gen_ai.input.messages": "[]", "c": call}
    )
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    return claimed.rollout_id


async def work(store: InMemoryLightningStore, ends: Sequence[float | str]) -> None:
    """End the forks in their order with a reward, or as failed by a part of the infrastructure."""
    claimed = [await store.dequeue_rollout("w", wait=10) for _ in ends]
    forks = sorted((one for one in claimed if one), key=lambda one: one.resources_id != "v0")
    for fork, end in zip(forks, ends, strict=True):
        ids = fork.rollout_id, fork.attempt.attempt_id
        if isinstance(end, str):
            lost = {"infrastructure": end, "repeatable": False}
            await store.update_attempt(*ids, status="failed", metadata=lost)
            continue
        await add_span(store, fork, **{"agentlightning.reward.0.name": "primary", REWARD: end})
        await store.update_attempt(*ids, status="succeeded")


async def told(
    store: InMemoryLightningStore,
    rollout_id: str,
    ends: Sequence[float | str] = (),
    counted: list[float] | None = None,
) -> str:
    """Return what a model is told about its one question."""
    run = Run(store)
    what_if = WhatIf(
        "search",
        store=store,
        run=run,
        snapshots=Snapshots(store, run, resources),
        questions=1,
        samples=max(1, len(ends) // 2),
        timeout=30.0,
        count=lambda name, rewards: (counted if counted is not None else []).extend(rewards),
    )
    asked: list[Any] = []

    async def ask(messages: Any, number: int) -> ChatReply:
        asked[:] = messages
        return ChatReply(question(1, 1, CHANGED) if number == 0 else "done")

    subject = Subject("critique", "v0", "prompt", [rollout_id])
    first: list[Any] = [{"role": "user", "content": "Criticise."}]
    working = asyncio.create_task(work(store, ends))
    reply = await what_if.converse(first, subject, ask)
    await working
    assert reply.text == "done"
    (result,) = results(asked)
    return result


@pytest.fixture
async def store() -> InMemoryLightningStore:
    made = InMemoryLightningStore()
    await made.update_resources("v0", resources("v0"))
    return made


@pytest.mark.parametrize(
    ("ends", "result"),
    [
        ([0.0, "proxy", 1.0, 1.0], "0.00 with the present prompt, 1.00 with the changed one."),
        (["proxy", 0.5, 1.0, "store"], "0.50 with the present prompt, 1.00 with the changed one."),
        (["proxy", 1.0], "no continuation with the present prompt could be scored."),
        ([1.0, "proxy"], "no continuation with the changed prompt could be scored."),
    ],
)
async def test_forks_that_the_infrastructure_failed_are_left_out_on_their_side(
    store: InMemoryLightningStore, ends: list[float | str], result: str
):
    counted: list[float] = []
    said = await told(store, await recorded(store), ends, counted)
    assert said.splitlines()[0].endswith(result)
    assert said.startswith("Run 1" if "mean" in said else "Not tried: ")
    assert counted == [end for end in ends if not isinstance(end, str)]


async def test_the_last_result_asks_for_the_answer(store: InMemoryLightningStore):
    said = await told(store, await recorded(store), [0.0, 1.0])
    assert said.splitlines()[1:] == ["Now give your answer."]


async def test_a_run_that_was_cancelled_in_the_queue_is_not_tried(store: InMemoryLightningStore):
    waiting = await store.enqueue_rollout("task", resources_id="v0")
    await store.update_rollout(waiting.rollout_id, status="cancelled")
    said = await told(store, waiting.rollout_id)
    assert said.startswith("Not tried: the recording of run 1 is not there.\n")


async def test_a_run_whose_spans_were_dropped_is_not_tried():
    small = InMemoryLightningStore(eviction_memory_threshold=20_000)
    await small.update_resources("v0", resources("v0"))
    dropped = await recorded(small)
    for _ in range(10):
        await recorded(small, call="x" * 10_000)
    said = await told(small, dropped)
    assert said.startswith("Not tried: the recording of run 1 is not there.\n")
