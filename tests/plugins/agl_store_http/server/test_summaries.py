"""Endpoints for pages that show many rollouts: counts, rewards, tokens, model calls, training."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_core.statistics import estimate_gain, estimate_mean
from agl_core.types import Span
from agl_store_http.server.views import training as reading
from agl_store_memory import InMemoryLightningStore

CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.response.model": "demo-7b",
    "gen_ai.input.messages": json.dumps(
        [{"role": "user", "parts": [{"type": "text", "content": "2+2?"}]}]
    ),
    "gen_ai.output.messages": json.dumps(
        [{"role": "assistant", "parts": [{"type": "text", "content": "4"}]}]
    ),
    "gen_ai.usage.input_tokens": 11,
    "gen_ai.usage.output_tokens": 2,
    "response_token_ids": [7, 8],
    "logprobs.content": json.dumps(
        [{"token": "4", "logprob": -0.1}, {"token": "<end>", "logprob": -0.2}]
    ),
}


def reward(value: float) -> dict[str, Any]:
    return {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}


async def finish(
    served,
    *attributes: dict[str, Any],
    status: str = "succeeded",
    task: Any = "task",
    mode: str = "train",
    resources_id: str | None = None,
    failed_by: str | None = None,
    **labels: Any,
):
    """Run one rollout to its end with a span per dict of attributes; return its id."""
    queued = await served.store.enqueue_rollout(
        task, mode=mode, resources_id=resources_id, metadata=labels
    )
    claimed = await served.store.dequeue_rollout("w")
    await add(served, claimed, *attributes)
    facts = {"infrastructure": failed_by, "repeatable": False} if failed_by else None
    await served.store.update_attempt(queued.rollout_id, "latest", status=status, metadata=facts)
    return queued.rollout_id


async def add(served, claimed, *attributes: dict[str, Any]) -> None:
    await served.store.add_many_spans(
        [
            Span.from_attributes(
                attributes=each,
                rollout_id=claimed.rollout_id,
                attempt_id=claimed.attempt.attempt_id,
                sequence_id=index,
                name="span",
                start_time=float(index),
                end_time=float(index),
            )
            for index, each in enumerate(attributes, start=1)
        ]
    )


async def judged(served, rollout_id: str, value: float) -> None:
    """Give a rollout that has ended a reward."""
    rollout = await served.store.get_rollout_by_id(rollout_id)
    span = Span.from_attributes(
        attributes=reward(value),
        rollout_id=rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=99,
    )
    await served.store.add_span(span)


async def summaries(served, *ids: str) -> Any:
    return (await served.post("/rollouts/summaries", {"rollout_ids": ids})).json


async def training(served) -> Any:
    return (await served.get("/training")).json


async def test_counts_are_by_status(served):
    await finish(served)
    await finish(served, status="failed")
    await served.store.enqueue_rollout(1)
    counts = (await served.get("/rollouts/counts")).json
    assert (counts["succeeded"], counts["failed"], counts["queuing"]) == (1, 1, 1)
    assert sum(counts.values()) == 3


async def test_a_summary_adds_up_calls_and_has_the_last_reward(served):
    second = {"agentlightning.reward.1.name": "format", "agentlightning.reward.1.value": 0.5}
    rollout_id = await finish(served, CALL, CALL, reward(0.1), reward(0.9) | second)
    queued = await served.store.enqueue_rollout(1)
    of_finished, of_queued = await summaries(served, rollout_id, queued.rollout_id, "unknown")
    assert of_finished["spans"] == 4
    assert of_finished["model_calls"] == 2
    assert (of_finished["input_tokens"], of_finished["output_tokens"]) == (22, 4)
    assert of_finished["rewards"] == {"primary": 0.9, "format": 0.5}
    assert (of_finished["reward"], of_finished["model"]) == (0.9, "demo-7b")
    assert of_queued["attempt_id"] is None
    assert of_queued["input_tokens"] is None


async def test_a_call_that_client_and_proxy_recorded_counts_once_everywhere(served):
    await served.store.enqueue_rollout(1)
    claimed = await served.store.dequeue_rollout("w")
    ids = {"gen_ai.response.id": "r-1"}
    silent = {key: value for key, value in CALL.items() if "messages" not in key}
    of_client = {key: value for key, value in silent.items() if "token" not in key} | ids
    ids_of = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    spans = [
        Span.from_attributes(
            attributes=attributes,
            **ids_of,
            sequence_id=number,
            name=name,
            span_id=f"{number:016x}",
            parent_id=parent,
            start_time=float(number),
            end_time=9.0 - number,
        )
        for number, name, parent, attributes in (
            (1, "openai.chat", None, of_client),
            (2, "agl.proxy", "1".zfill(16), CALL | ids),
            (3, "agl.proxy", None, CALL | {"gen_ai.response.id": "r-2"}),
        )
    ]
    await served.store.add_many_spans(spans)
    (summary,) = await summaries(served, claimed.rollout_id)
    assert (summary["spans"], summary["model_calls"]) == (3, 2)
    assert (summary["input_tokens"], summary["output_tokens"]) == (22, 4)
    page = (await served.get(f"/rollouts/{claimed.rollout_id}/calls")).json
    assert [call["span_id"] for call in page["items"]] == ["1".zfill(16), "3".zfill(16)]
    # The client recorded no messages and no tokens; the proxy did.
    first = page["items"][0]
    assert [message["content"] for message in first["messages"]] == ["2+2?", "4"]
    assert (first["input_tokens"], first["response_token_ids"]) == (11, [7, 8])


async def test_a_summary_follows_a_running_attempt_and_a_retry(served):
    await served.store.enqueue_rollout(1)
    claimed = await served.store.dequeue_rollout("w")
    await add(served, claimed, CALL)
    (before,) = await summaries(served, claimed.rollout_id)
    await add(served, claimed, CALL, reward(1.0))
    (after,) = await summaries(served, claimed.rollout_id)
    assert (before["reward"], after["reward"]) == (None, 1.0)
    await served.store.update_attempt(claimed.rollout_id, "latest", status="failed")
    await served.store.start_attempt(claimed.rollout_id)
    (retried,) = await summaries(served, claimed.rollout_id)
    assert (retried["spans"], retried["reward"]) == (0, None)


async def test_a_summary_has_what_came_after_the_end(served):
    rollout_id = await finish(served, CALL)
    (summary,) = await summaries(served, rollout_id)
    assert (summary["reward"], summary["spans"]) == (None, 1)
    await judged(served, rollout_id, 1.0)
    (summary,) = await summaries(served, rollout_id)
    assert (summary["reward"], summary["spans"]) == (1.0, 2)


async def test_the_groups_of_a_batch_are_its_rollouts_by_task(served):
    for question, value in (("a", 1.0), ("b", 0.5), ("a", 0.0), ("b", 0.5)):
        metadata = {"run": "night", "batch": "step-1"}
        await served.store.enqueue_rollout({"question": question}, metadata=metadata)
        claimed = await served.store.dequeue_rollout("w")
        await add(served, claimed, reward(value))
        await served.store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    await finish(served, reward(9.0), run="night", batch="step-2")
    waiting = await served.store.enqueue_rollout({"question": "a"}, metadata=metadata)
    found = (await served.get("/training/groups?run=night&batch=step-1")).json
    assert found["rollouts"] == 5
    first, second = found["groups"]
    assert first["task"] == {"question": "a"}
    assert [each["reward"] for each in first["rollouts"]] == [1.0, 0.0, None]
    assert first["rollouts"][2]["rollout_id"] == waiting.rollout_id
    assert (first["reward_mean"], round(first["reward_std"], 3)) == (0.5, 0.707)
    assert (second["reward_mean"], second["reward_std"]) == (0.5, 0.0)
    other = (await served.get("/training/groups?run=night&batch=step-9")).json
    assert other == {"groups": [], "rollouts": 0}


async def test_an_unreadable_reward_does_not_count(served):
    unreadable = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": "x"}
    rollout_id = await finish(served, reward(0.5), unreadable, reward(float("nan")), batch="b")
    assert (await summaries(served, rollout_id))[0]["reward"] == 0.5
    assert (await training(served))["batches"][0]["reward_mean"] == 0.5


async def test_too_many_ids_are_refused(served):
    answer = await served.post("/rollouts/summaries", {"rollout_ids": ["x"] * 501})
    assert answer.status == 422


async def test_model_calls_have_one_form(served):
    rollout_id = await finish(served, {"other": 1}, CALL, CALL)
    page = (await served.get(f"/rollouts/{rollout_id}/calls")).json
    assert page["total"] == 2
    call = page["items"][0]
    assert call["messages"] == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
    ]
    assert call["tokens"] == [
        {"token": "4", "logprob": -0.1},
        {"token": "<end>", "logprob": -0.2},
    ]
    assert (call["response_token_ids"], call["output_tokens"]) == ([7, 8], 2)
    page = (await served.get(f"/rollouts/{rollout_id}/calls?limit=1&offset=1")).json
    assert (len(page["items"]), page["total"]) == (1, 2)


async def test_an_auxiliary_call_says_what_it_is_for(served):
    text = "Generate a title for this conversation: 2+2?"
    asked = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
    title = CALL | {"gen_ai.input.messages": json.dumps(asked), "response_token_ids": [5]}
    rollout_id = await finish(served, CALL, title)
    page = (await served.get(f"/rollouts/{rollout_id}/calls")).json
    assert [call["auxiliary"] for call in page["items"]] == [None, "title"]


async def test_messages_that_cannot_be_read_are_a_problem_of_their_call(served):
    broken = CALL | {"gen_ai.input.messages": json.dumps([{"role": "nobody", "parts": []}])}
    rollout_id = await finish(served, broken, CALL)
    first, second = (await served.get(f"/rollouts/{rollout_id}/calls")).json["items"]
    assert first["problem"]
    assert first["messages"] == []
    assert second["problem"] is None


async def test_training_is_the_rewards_of_each_batch(served):
    for task, value in enumerate((0.0, 1.0)):
        await finish(served, reward(value), task=task, run="r", batch="step-1")
    await finish(served, run="r", batch="step-1", task=2, status="failed")
    await finish(served, reward(1.0), run="r", batch="step-2")
    first, second = (await training(served))["batches"]
    assert (first["run"], first["batch"], first["mode"]) == ("r", "step-1", "train")
    assert (first["rollouts"], first["finished"], first["failed"]) == (3, 3, 1)
    assert (first["rewarded"], first["tasks"]) == (2, 3)
    assert (first["reward_min"], first["reward_max"]) == (0.0, 1.0)
    assert interval_of(first) == pytest.approx(estimate_mean([0.0, 1.0, 0.0])[:3])
    assert interval_of(second) == pytest.approx(estimate_mean([1.0])[:3])


def interval_of(score: dict[str, Any]) -> tuple[float, float, float]:
    return score["reward_mean"], score["reward_low"], score["reward_high"]


async def test_repeats_of_a_task_count_as_one(served):
    for task, value in (({"a": 1, "b": 2}, 1.0), ({"b": 2, "a": 1}, 0.0), ("other", 1.0)):
        await finish(served, reward(value), task=task, batch="b")
    (batch,) = (await training(served))["batches"]
    assert (batch["rollouts"], batch["tasks"]) == (3, 2)
    assert interval_of(batch) == pytest.approx(estimate_mean([0.5, 1.0])[:3])


async def test_failures_count_as_the_lowest_reward(served):
    await finish(served, reward(-0.5), task=1, batch="b")
    await finish(served, reward(-2.0), task=2, batch="b")
    for task in (3, 4):
        await finish(served, status="failed", task=task, batch="b")
    await finish(served, status="failed", task=1, batch="all failed")
    await finish(served, task=1, batch="no rewards")
    await finish(served, task=2, status="failed", batch="no rewards")
    first, second, third = (await training(served))["batches"]
    assert first["reward_mean"] == (-0.5 - 2.0 * 3) / 4
    assert second["reward_mean"] == 0.0
    assert third["reward_mean"] is None


async def test_the_reward_of_a_rollout_that_failed_does_not_count(served):
    await finish(served, reward(1.0), status="failed", task="a", run="r", batch="b")
    await finish(served, reward(0.5), task="b", run="r", batch="b")
    found = (await served.get("/training")).json
    (batch,) = found["batches"]
    assert (batch["reward_mean"], batch["rewarded"], batch["reward_max"]) == (0.25, 1, 0.5)
    found = (await served.get("/training/groups?run=r&batch=b")).json
    assert [group["reward_mean"] for group in found["groups"]] == [0.0, 0.5]


async def test_evaluations_of_different_prompts_are_different_rows(served):
    before, after = [(await served.store.add_resources({})).resources_id for _ in range(2)]
    for resources_id, value in ((before, 0.0), (after, 1.0), (before, 0.0)):
        labels = {"run": "r", "batch": "compare"}
        await finish(served, reward(value), mode="test", resources_id=resources_id, **labels)
    first, second = (await training(served))["batches"]
    assert (first["batch"], first["reward_mean"]) == (f"compare {before}", 0.0)
    assert (second["batch"], second["reward_mean"]) == (f"compare {after}", 1.0)
    found = (await served.get(f"/training/groups?run=r&batch=compare%20{before}")).json
    assert found["rollouts"] == 2


async def test_a_rollout_that_never_began_does_not_count(served):
    await finish(served, reward(1.0), batch="b")
    queued = await served.store.enqueue_rollout("late", mode="train", metadata={"batch": "b"})
    await served.store.update_rollout(queued.rollout_id, status="cancelled")
    (batch,) = (await training(served))["batches"]
    assert (batch["finished"], batch["tasks"], batch["reward_mean"]) == (2, 1, 1.0)


async def test_a_snapshot_has_a_score_per_mode_over_all_batches(served):
    resources_id = (await served.store.add_resources({})).resources_id
    for mode, batch, task, value in (
        ("train", "v1-gradient", 1, 1.0),
        ("val", "v1-round-1", 2, 1.0),
        ("val", "v1-round-2", 3, 0.0),
        ("val", "v1-round-2", 2, 0.0),
    ):
        labels = {"run": "r", "batch": batch}
        await finish(
            served, reward(value), task=task, mode=mode, resources_id=resources_id, **labels
        )
    train, val = (await training(served))["snapshots"]
    assert (train["mode"], train["rollouts"], train["reward_mean"]) == ("train", 1, 1.0)
    assert (val["mode"], val["rollouts"], val["tasks"]) == ("val", 3, 2)
    assert interval_of(val) == pytest.approx(estimate_mean([0.5, 0.0])[:3])
    assert val["resources_id"] == resources_id


async def test_the_gain_of_a_snapshot_is_paired_by_task(served):
    old, new = [(await served.store.add_resources({})).resources_id for _ in range(2)]
    for task, before, after in ((1, 0.0, 1.0), (2, 0.5, 0.5), (3, 1.0, None)):
        for resources_id, value in ((old, before), (new, after)):
            said = [] if value is None else [reward(value)]
            status = "succeeded" if said else "failed"  # a failure counts as the lowest reward
            labels = {"mode": "test", "resources_id": resources_id, "status": status}
            await finish(served, *said, task=task, **labels)
    await finish(served, reward(1.0), task="only here", mode="test", resources_id=new)
    await finish(served, reward(1.0), task=1, mode="val", resources_id=new)
    wanted = f"/training/gain?before={old}&after={new}"
    found = (await served.get(f"{wanted}&mode=test")).json
    gain = estimate_gain([0.0, 0.5, 1.0], [1.0, 0.5, 0.0])
    assert found.pop("tasks") == 3
    assert tuple(found.values()) == pytest.approx(gain[:3])
    nothing = {"tasks": 0, "gain_mean": None, "gain_low": None, "gain_high": None}
    for path in (f"{wanted}&mode=val", wanted, "/training/gain?before=a&after=b&mode=test"):
        assert (await served.get(path)).json == nothing
    assert (await served.get(f"{wanted}&mode=other")).status == 422


async def test_training_goes_on_where_it_stopped(served):
    await finish(served, reward(1.0), run="r", batch="a")
    await served.store.enqueue_rollout("task", metadata={"run": "r", "batch": "b"})
    summary = await training(served)
    assert [batch["finished"] for batch in summary["batches"]] == [1, 0]
    assert (summary["complete"], summary["read"], summary["total"]) == (True, 2, 2)
    claimed = await served.store.dequeue_rollout("w")
    await add(served, claimed, reward(0.25))
    await served.store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    summary = await training(served)
    assert [batch["reward_mean"] for batch in summary["batches"]] == [1.0, 0.25]


async def test_a_reward_before_many_other_spans_counts(served):
    await finish(served, reward(0.1), reward(0.75), *[CALL] * 40, batch="b")
    (batch,) = (await training(served))["batches"]
    assert (batch["rewarded"], batch["reward_mean"]) == (1, 0.75)
    await finish(served, *[CALL] * 40, batch="b")  # its reward counts 0
    (batch,) = (await training(served))["batches"]
    assert (batch["rewarded"], batch["reward_mean"]) == (1, 0.375)


async def test_a_rollout_is_read_once_when_it_has_ended(serve, monkeypatch):
    read: list[str] = []
    query = InMemoryLightningStore.query_encoded_spans

    async def counted(self, rollout_id, *args, **filters):
        read.append(rollout_id)
        return await query(self, rollout_id, *args, **filters)

    monkeypatch.setattr(InMemoryLightningStore, "query_encoded_spans", counted)
    served = await serve()  # only now: a list of interceptors is built when it is set
    await served.store.enqueue_rollout("waits", metadata={"run": "r", "batch": "a"})
    claimed = await served.store.dequeue_rollout("w")  # open, before all others
    ended = [await finish(served, reward(0.5), run="r", batch="a") for _ in range(3)]
    for _ in range(2):
        assert (await training(served))["batches"][0]["finished"] == 3
    assert sorted(read) == sorted(ended)
    await served.store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    (batch,) = (await training(served))["batches"]
    assert (batch["finished"], batch["rewarded"], batch["tasks"]) == (4, 3, 2)
    assert read[3:] == [claimed.rollout_id]


async def test_training_has_a_first_reward_that_came_after_the_end(served, monkeypatch):
    snapshot = await served.store.add_resources({})
    labels = {"resources_id": snapshot.resources_id, "run": "r", "batch": "a"}
    first = await finish(served, CALL, **labels)
    await finish(served, reward(0.5), task="other", **labels)
    (batch,) = (await training(served))["batches"]
    assert (batch["rewarded"], batch["reward_mean"]) == (1, 0.25)
    await judged(served, first, 1.0)
    monkeypatch.setattr(reading, "_UNRATED_SECONDS", 0.0)
    for _ in range(2):  # it counts once
        summary = await training(served)
        (batch,), (score,) = summary["batches"], summary["snapshots"]
        assert (batch["rewarded"], batch["reward_mean"]) == (2, 0.75)
        assert (score["rollouts"], score["reward_mean"]) == (2, 0.75)
    groups = (await served.get("/training/groups", run="r", batch="a")).json["groups"]
    assert [group["reward_mean"] for group in groups] == [1.0, 0.5]


@pytest.mark.parametrize("later", [1, 4, 6])
async def test_training_starts_over_after_a_vacuum_that_nobody_saw(serve, tmp_path, later):
    sqlite = pytest.importorskip("agl_store_sqlite")
    served = await serve(store=sqlite.SqliteLightningStore(tmp_path / "agl.db"))
    for _ in range(4):
        await finish(served, run="r", batch="old")
    await training(served)
    await served.store.vacuum(keep_last=0)
    for _ in range(later):
        await finish(served, run="r", batch="new")
    batches = (await training(served))["batches"]
    assert [(batch["batch"], batch["rollouts"]) for batch in batches] == [("new", later)]
    await served.store.close()


async def test_training_starts_over_when_rollouts_were_dropped(serve, tmp_path):
    sqlite = pytest.importorskip("agl_store_sqlite")
    served = await serve(store=sqlite.SqliteLightningStore(tmp_path / "agl.db"))
    for number in range(4):
        await finish(served, reward(float(number)), run="r", batch="a")
    assert (await training(served))["batches"][0]["rollouts"] == 4
    assert await served.store.vacuum(keep_last=1) == 3
    await finish(served, reward(5.0), run="r", batch="a")
    (batch,) = (await training(served))["batches"]
    assert (batch["rollouts"], batch["reward_mean"]) == (2, 4.0)
    await served.store.close()


async def test_half_a_surrogate_pair_in_a_task_does_not_hide_other_rollouts(served):
    await served.store.enqueue_rollout({"text": "half \ud83d here", "score": float("inf")})
    await served.store.enqueue_rollout("whole")
    reply = await served.get("/rollouts")
    assert reply.status == 200
    inputs = [item["input"] for item in reply.json["items"]]
    assert inputs[0]["text"] == "half ? here"
    assert inputs[1] == "whole"


async def test_failures_of_the_infrastructure_are_not_those_of_the_agent(served):
    snapshot = (await served.store.add_resources({})).resources_id
    labels = {"run": "r", "batch": "b", "resources_id": snapshot}
    await finish(served, reward(1.0), task=1, **labels)
    await finish(served, task=2, status="failed", failed_by="proxy", **labels)
    await finish(served, task=3, status="failed", **labels)
    found = await training(served)
    (batch,), (score,) = found["batches"], found["snapshots"]
    assert (batch["finished"], batch["failed"], batch["lost"]) == (3, 1, 1)
    assert (batch["tasks"], batch["reward_mean"]) == (2, 0.5)
    assert (score["rollouts"], score["tasks"], score["reward_mean"]) == (2, 2, 0.5)
    groups = (await served.get("/training/groups?run=r&batch=b")).json["groups"]
    lost = [one["rollouts"][0]["infrastructure"] for one in groups]
    assert (lost, [one["reward_mean"] for one in groups]) == ([None, "proxy", None], [1, None, 0])


async def test_a_batch_that_the_infrastructure_failed_has_no_score(served):
    await finish(served, status="failed", failed_by="store", run="r", batch="b")
    (batch,) = (await training(served))["batches"]
    assert (batch["failed"], batch["lost"], batch["reward_mean"]) == (0, 1, None)


async def test_a_prompt_that_crashes_on_half_of_its_tasks_scores_half(served):
    for task in range(4):
        crashed = {"status": "failed"} if task % 2 else {}
        await finish(served, reward(1.0), task=task, run="r", batch="b", **crashed)
    (batch,) = (await training(served))["batches"]
    assert (batch["failed"], batch["reward_mean"]) == (2, 0.5)


async def test_the_cost_of_a_run_is_that_of_each_batch(served):
    await finish(served, CALL, CALL, run="r", batch="a")
    await finish(served, CALL, run="r", batch="a", status="failed")
    await finish(served, run="r", batch="b")
    await finish(served, CALL, run="other", batch="a")
    await served.store.enqueue_rollout(1, metadata={"run": "r", "batch": "b"})
    one, two = (await served.get("/training/costs?run=r")).json["batches"]
    assert (one["batch"], one["rollouts"], one["model_calls"]) == ("a", 2, 3)
    assert (one["input_tokens"], one["output_tokens"]) == (33, 6)
    assert (two["batch"], two["rollouts"], two["input_tokens"]) == ("b", 1, None)


async def test_a_large_run_is_read_in_part_for_its_cost(served, monkeypatch):
    monkeypatch.setattr("agl_store_http.server.views.costs._MOST_READ", 4)
    for batch in "ab":
        for _ in range(3):
            await finish(served, CALL, run="r", batch=batch)
    found = (await served.get("/training/costs?run=r")).json["batches"]
    assert [(one["batch"], one["rollouts"], one["model_calls"]) for one in found] == [
        ("a", 2, 2),
        ("b", 2, 2),
    ]


def says(text: str) -> dict[str, Any]:
    sent = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
    return CALL | {"gen_ai.input.messages": json.dumps(sent)}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("smallest ROOM", ["room"]),
        ('6 "seats"', ["room"]),
        ("\u00dcber", ["umlaut"]),
        ("\u00fcBER", ["umlaut"]),
        ("line two", ["lines"]),
        ("one\nline", ["lines"]),
        ("birthday", ["task"]),
        ("content", []),  # a key of the format, which nobody said
        ("100 %", ["percent"]),
        ("2+2", ["sum", "failed"]),
        ("nothing of that", []),
    ],
)
async def test_rollouts_are_found_by_what_they_say(served, wanted, found):
    ids = {
        "room": await finish(served, says('The smallest room for 6 "seats"'), task=1),
        "umlaut": await finish(served, says("etwas \u00dcber"), task=2),
        "lines": await finish(served, says("one\nline two"), task=3),
        "task": await finish(served, task={"wish": ["A Birthday"]}),
        "percent": await finish(served, says("100 %"), task=4),
        "sum": await finish(served, CALL, task=5),
        "failed": await finish(served, CALL, task=6, status="failed"),
    }
    page = await served.get("/rollouts/containing", text=wanted)
    assert set(page.json["rollout_ids"]) == {ids[name] for name in found}
    assert (page.json["searched"], page.json["total"]) == (7, 7)


async def test_a_search_of_text_says_how_far_it_came_and_goes_on(served, monkeypatch):
    ids = [await finish(served, says("needle"), task=number) for number in range(5)]
    monkeypatch.setattr("agl_store_http.server.views.text_search._MOST_FOUND", 2)
    found: list[str] = []
    offset = 0
    for searched in (2, 4, 5):
        target = "/rollouts/containing"
        page = (await served.get(target, text="needle", offset=offset)).json
        found += page["rollout_ids"]
        offset = page["searched"]
        assert (offset, page["total"]) == (searched, 5)
    assert found == ids[::-1]
    assert (await served.get("/rollouts/containing", text="x" * 201)).status == 422
