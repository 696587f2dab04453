"""Descriptions of rollouts for a critic."""

from __future__ import annotations

from typing import Any

import pytest

from agl_adapters import TraceToMessages
from agl_core.algorithm import BatchOutcome, RolloutOutcome
from agl_core.types import Rollout, Span
from agl_prompt_search.experiments import ConversationCheck, describe

ROLLOUT = Rollout(rollout_id="ro-1", input=1, start_time=0.0, status="succeeded")


def span(name: str, number: int, attributes: dict[str, Any]) -> Span:
    return Span.from_attributes(
        name=name,
        attributes=attributes,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
    )


def call(number: int, prompt: list[tuple[str, str]], answer: str) -> Span:
    attributes: dict[str, Any] = {
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": answer,
    }
    for index, (role, content) in enumerate(prompt):
        attributes[f"gen_ai.prompt.{index}.role"] = role
        attributes[f"gen_ai.prompt.{index}.content"] = content
    return span("chat", number, attributes)


def shown(*spans: Span, reward: float | None = None) -> Any:
    return describe(RolloutOutcome(ROLLOUT, reward, spans), TraceToMessages())


def test_a_conversation_is_shown_once_and_without_the_system_prompt():
    first = [("system", "Be nice."), ("user", "Hi")]
    second = [*first, ("assistant", "Hello"), ("user", "Bye")]
    found = shown(call(1, first, "Hello"), call(2, second, "See you"), reward=0.5)
    assert found["conversation"] == ("user: Hi\nassistant: Hello\nuser: Bye\nassistant: See you")
    assert len(found["messages"]) == 1
    assert (found["status"], found["final_reward"]) == ("succeeded", 0.5)


def test_separate_conversations_are_shown_one_after_the_other():
    found = shown(call(1, [("user", "A")], "1"), call(2, [("user", "B")], "2"))
    assert found["conversation"] == "user: A\nassistant: 1\n\nuser: B\nassistant: 2"


def test_emitted_messages_are_feedback():
    found = shown(span("agentlightning.message", 1, {"agentlightning.message.body": "Too late."}))
    assert found["feedback"] == ["Too late."]


def test_so_are_the_reasons_of_a_judge():
    verdict = {"agentlightning.reward.0.value": 0.2, "judge.reason": "It books nothing."}
    found = shown(span("agentlightning.annotation", 1, verdict))
    assert found["feedback"] == ["judge: It books nothing."]


@pytest.mark.parametrize(
    "noise",
    ["1763680000", "1763680000.25", "7c9e6679-7425-40de-944b-e07fc1f90ae7", "d41d8cd98f00b204"],
)
def test_ids_and_times_are_left_out_of_spans(noise: str):
    (view,) = shown(span("tool", 1, {"what": f"id-{noise} at 12:30, room 1763"}))["spans"]
    assert view["attributes"] == {"what": "id-… at 12:30, room 1763"}


def test_so_is_the_way_a_call_went():
    attributes = {
        "agl.proxy.backend": "http://127.0.0.1:40123/v1",
        "agl.proxy.queue_seconds": 7.5e-06,
        "gen_ai.server.time_to_first_token": 0.03,
        "gen_ai.response.id": "chatcmpl-1",
        "server.port": 40123,
        "llm.latency_ms": 5,
        "gen_ai.response.model": "m",
        "serverless": True,
    }
    (view,) = shown(span("chat", 1, attributes))["spans"]
    assert view["attributes"] == {"gen_ai.response.model": "m", "serverless": "True"}


def test_long_texts_are_cut_in_the_middle():
    found = shown(call(1, [("user", "a" * 3000 + "z" * 3000)], "ok"))
    line = found["conversation"].splitlines()[0]
    assert line.startswith("user: aaa")
    assert line.endswith("zzz")
    assert len(line) < 2050
    assert len(found["messages"][0][0]["content"]) == 6000


def test_a_trace_that_cannot_be_read_has_no_messages():
    broken = span("chat", 1, {"gen_ai.prompt.role": "user", "gen_ai.completion.0.content": "x"})
    found = shown(broken)
    assert found["messages"] == []
    assert found["conversation"] == ""
    assert len(found["spans"]) == 1


@pytest.mark.parametrize(
    ("batches", "warnings"),
    [
        ([[]], 0),
        ([["failed"]], 0),  # it may have failed before its first call
        ([["failed", "silent"], ["silent"]], 1),
        ([["silent", "call"], ["silent"]], 0),
        ([["failed"], ["silent"]], 1),
    ],
)
def test_missing_conversations_are_reported_after_the_first_batch_that_ran(
    batches, warnings, caplog
):
    failed = ROLLOUT.model_copy(update={"status": "failed"})
    kinds = {
        "failed": RolloutOutcome(failed, None, []),
        "silent": RolloutOutcome(ROLLOUT, 1.0, [span("work", 1, {})]),
        "call": RolloutOutcome(ROLLOUT, 1.0, [call(1, [("user", "Hi")], "Hello")]),
    }
    check = ConversationCheck("GEPA", TraceToMessages())
    for batch in batches:
        check.look_at(BatchOutcome([kinds[kind] for kind in batch]))
    assert len(caplog.records) == warnings
    assert all("GEPA reads conversations" in one.message for one in caplog.records)


def test_a_call_of_a_client_and_its_proxy_is_shown_once_whichever_came_first():
    client = call(2, [("user", "Hi")], "Hello").model_copy(update={"start_time": 1.0})
    client.attributes["gen_ai.response.id"] = "response-1"
    proxied = client.model_copy(
        update={"name": "proxy", "parent_id": client.span_id, "span_id": "b" * 16}
    )
    tool = span("tool", 1, {}).model_copy(update={"start_time": 2.0})
    for order in ((tool, proxied, client), (proxied, client, tool)):
        assert [one["name"] for one in shown(*order)["spans"]] == ["chat", "tool"]
