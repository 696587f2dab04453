"""Tests of TracerTraceToTriplet: fields of triplets, selection of calls, counts in reports."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agl_adapters import CallRules, TracerTraceToTriplet
from agl_adapters.tree import TraceTree
from agl_adapters.triplet import tree_to_triplets
from agl_core.adapter import AdapterReport, Reason, Repair
from agl_core.errors import MissingDependencyError
from agl_core.types import Span

CALL = "openai.chat.completion"


def span(
    id: str,
    parent: str | None,
    start: float,
    end: float,
    attributes: dict[str, Any] | None = None,
    name: str = "work",
) -> Span:
    return Span.from_attributes(
        attributes=attributes or {},
        name=name,
        trace_id="t" * 32,
        span_id=id,
        parent_id=parent,
        start_time=start,
        end_time=end,
    )


def call(id: str, parent: str | None, start: float, end: float, **attributes: Any) -> Span:
    given = {
        "gen_ai.response.id": f"resp-{id}",
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3],
        **{key.replace("__", "."): value for key, value in attributes.items()},
    }
    kept = {key: value for key, value in given.items() if value is not None}
    return span(id, parent, start, end, kept, CALL)


def reward(id: str, parent: str, at: float, value: float) -> Span:
    return span(id, parent, at, at, {"agentlightning.reward.0.value": value})


def test_a_triplet_holds_tokens_messages_parameters_and_agent() -> None:
    image = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "http://img/1.png"}},
    ]
    spans = [
        span("agent", None, 0, 9, {"agent.name": "writer"}),
        span(
            "c",
            "agent",
            1,
            2,
            {
                "gen_ai.request.model": "m",
                "gen_ai.request.temperature": 0.5,
                "gen_ai.response.id": "resp",
                "gen_ai.response.model": "m-1",
                "gen_ai.prompt.0.role": "system",
                "gen_ai.prompt.0.content": "be brief",
                "gen_ai.prompt.1.role": "user",
                "gen_ai.prompt.1.content": json.dumps(image),
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.content": "a cat",
                "prompt_token_ids": [1, 2, 3],
                "response_token_ids": [4, 5],
                "logprobs.content": json.dumps([{"token": "a", "logprob": -0.5}]),
            },
            CALL,
        ),
        reward("x", "agent", 3, 1.5),
    ]
    adapter = TracerTraceToTriplet()
    (triplet,) = adapter(spans)
    assert triplet.prompt == {
        "token_ids": [1, 2, 3],
        "raw_content": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": json.dumps(image)},
        ],
        "image_urls": ["http://img/1.png"],
    }
    assert triplet.response == {
        "token_ids": [4, 5],
        "raw_content": [{"role": "assistant", "content": "a cat"}],
        "logprobs": [{"token": "a", "logprob": -0.5}],
    }
    assert triplet.reward == 1.5
    assert triplet.metadata == {
        "request": {"model": "m", "temperature": 0.5},
        "response": {"id": "resp", "model": "m-1"},
        "response_id": "resp",
        "agent_name": "writer",
    }
    assert adapter.report.as_dict() == {
        "spans": 3,
        "produced": {"triplets": 1},
        "left_out": {},
        "repaired": {},
    }


def test_an_operation_around_a_client_is_read_like_a_call() -> None:
    operation = "agentlightning.operation"
    output = {
        f"{operation}.output.id": "resp",
        f"{operation}.output.model": "m",
        f"{operation}.output.prompt_token_ids": [1, 2],
        f"{operation}.output.choices.0.message.role": "assistant",
        f"{operation}.output.choices.0.message.content": "hi",
        f"{operation}.output.choices.0.provider_specific_fields.token_ids": [3, 4],
        f"{operation}.input.model": "m",
        f"{operation}.input.messages.0.role": "user",
        f"{operation}.input.messages.0.content.0.type": "image_url",
        f"{operation}.input.messages.0.content.0.image_url.url": "http://img",
    }
    (triplet,) = TracerTraceToTriplet().adapt(
        [span("c", None, 0, 1, output, "openai.chat.completions.create")]
    )
    assert triplet.prompt["token_ids"] == [1, 2]
    assert triplet.prompt["image_urls"] == ["http://img"]
    assert triplet.prompt["raw_content"][0]["role"] == "user"
    assert triplet.response["token_ids"] == [3, 4]
    assert triplet.response["raw_content"][0]["message"]["content"] == "hi"
    assert triplet.metadata == {
        "request": {"model": "m"},
        "response": {"id": "resp", "model": "m"},
        "response_id": "resp",
        "agent_name": "*",
    }


def test_token_ids_that_were_not_captured_are_empty_or_skipped_on_demand() -> None:
    spans = [
        span("r", None, 0, 9),
        call("a", "r", 1, 2),
        call("b", "r", 3, 4, response_token_ids=None),
        reward("x", "r", 5, 1.0),
    ]
    plain = TracerTraceToTriplet().adapt(spans)
    assert [(t.response["token_ids"], t.reward) for t in plain] == [([3], None), ([], 1.0)]
    for adapter in (
        TracerTraceToTriplet(skip_empty_token_spans=True),
        TracerTraceToTriplet(_skip_empty_token_spans=True),  # pyright: ignore[reportCallIssue]
    ):
        # Calls are skipped before rewards are matched, so the remaining call gets the reward.
        assert [(t.response["token_ids"], t.reward) for t in adapter.adapt(spans)] == [([3], 1.0)]
        assert adapter.report.left_out == {("call", Reason.NO_TOKEN_IDS): 1}


def test_a_duplicate_response_id_counts_once() -> None:
    spans = [
        span("r", None, 0, 9),
        call("a", "r", 1, 4, gen_ai__response__id="same"),
        call("b", "a", 2, 3, gen_ai__response__id="same"),
        call("c", "r", 5, 6, gen_ai__response__id="same"),
        call("d", "a", 2, 3, gen_ai__response__id=None),
        call("e", "a", 2, 3, gen_ai__response__id="own"),
    ]
    adapter = TracerTraceToTriplet()
    assert [t.metadata["response_id"] for t in adapter.adapt(spans)] == ["same", "own"]
    assert adapter.report.left_out == {
        ("call", Reason.DUPLICATE_RESPONSE): 2,
        ("call", Reason.NESTED_CALL): 1,
    }


def test_a_call_of_the_client_replaces_that_of_its_framework() -> None:
    spans = [
        span("agent", None, 0, 9, {"agent.name": "writer"}),
        call("generation", "agent", 1, 4, gen_ai__response__id=None),
        call("client", "generation", 2, 3, gen_ai__response__id="real"),
    ]
    adapter = TracerTraceToTriplet()
    (triplet,) = adapter.adapt(spans)
    assert (triplet.metadata["response_id"], triplet.metadata["agent_name"]) == ("real", "writer")
    assert adapter.report.left_out == {("call", Reason.NESTED_CALL): 1}


def test_the_data_of_a_call_comes_from_the_span_with_the_tokens() -> None:
    # The attributes that OpenInference's instrumentations of LangChain and of its client write.
    framework = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "output.value": json.dumps(
            {"generations": [[{"message": {"kwargs": {"response_metadata": {"id": "r-1"}}}}]]}
        ),
    }
    choice = {"token_ids": [3, 4], "logprobs": {"content": [{"token": "a", "logprob": -1.0}]}}
    response = {"id": "r-1", "prompt_token_ids": [1, 2], "choices": [choice]}
    client = {**framework, "output.value": json.dumps(response)}
    spans = [
        span("agent", None, 0, 9, {"openinference.span.kind": "AGENT", "graph.node.id": "writer"}),
        span("framework", "agent", 1, 4, framework),
        span("client", None, 2, 3, client),
    ]
    adapter = TracerTraceToTriplet(llm_call_match=None)
    (triplet,) = adapter.adapt(spans)
    assert triplet.prompt["token_ids"] == [1, 2]
    assert triplet.response["token_ids"] == [3, 4]
    assert triplet.response["logprobs"] == choice["logprobs"]["content"]
    assert triplet.metadata["agent_name"] == "writer"
    assert adapter.report.left_out == {("call", Reason.DUPLICATE_RESPONSE): 1}


@pytest.mark.parametrize("logprobs", [None, '[{"token": "a", "logprob": -2.0}]'])
@pytest.mark.parametrize("parent", ["client", "agent"])
def test_a_client_that_asks_for_token_ids_does_not_hide_what_the_proxy_knows(
    logprobs: str | None, parent: str
) -> None:
    # The proxy keeps the ids in the answer if the agent asked for them, so that both spans have
    # them. Log-probabilities and the version of the weights are on the proxy's.
    client = call("client", "agent", 1, 4, gen_ai__response__id="r", logprobs__content=logprobs)
    proxy = call(
        "proxy",
        parent,
        2,
        3,
        gen_ai__response__id="r",
        logprobs__content='[{"token": "a", "logprob": -0.5}]',
        agentlightning__model_version="7",
    )
    agent = span("agent", None, 0, 9)
    for spans in ([agent, client, proxy], [agent, proxy, client]):
        (found,) = TraceTree.from_spans(spans).find_llm_calls(CallRules())
        assert found.call.model_version == "7"
        assert found.call.logprobs == [{"token": "a", "logprob": -0.5}]
        assert {one.span_id for one in found.spans} == {"client", "proxy"}


def test_after_repair_agent_match_finds_a_stray_call() -> None:
    spans = [
        span("r", None, 0, 99),
        span("agent", "r", 10, 20, {"agent.name": "writer"}),
        call("stray", "r", 12, 14),
        reward("x", "agent", 16, 0.5),
        span("judge", "r", 30, 40, {"agent.name": "judge"}),
        call("judged", "judge", 32, 34),
    ]
    adapter = TracerTraceToTriplet(agent_match="^writer$", reward_match="first_sibling")  # pyright: ignore[reportArgumentType]
    (triplet,) = adapter.adapt(spans)
    assert triplet.metadata["agent_name"] == "writer"
    assert triplet.reward == 0.5
    assert adapter.report.left_out == {("call", Reason.OTHER_AGENT): 1}
    assert adapter.report.repaired == {("span", Repair.REPARENTED): 1}
    unrepaired = TracerTraceToTriplet(repair_hierarchy=False, agent_match="^writer$")
    assert unrepaired.adapt(spans) == []
    assert unrepaired.report.left_out == {
        ("call", Reason.OTHER_AGENT): 2,
        ("reward", Reason.NO_CALL): 1,
    }


def test_calls_of_a_judge_are_left_out_unless_asked_for() -> None:
    spans = [
        span("r", None, 0, 99),
        call("a", "r", 1, 2),
        span("score", "r", 3, 9, {"agentlightning.reward.0.value": 1.0}),
        call("judge", "score", 4, 5),
    ]
    adapter = TracerTraceToTriplet()
    assert [t.metadata["response_id"] for t in adapter.adapt(spans)] == ["resp-a"]
    assert adapter.report.left_out == {("call", Reason.IN_REWARD): 1}
    both = TracerTraceToTriplet(exclude_llm_call_in_reward=False).adapt(spans)
    assert [t.metadata["response_id"] for t in both] == ["resp-a", "resp-judge"]


def test_a_model_call_of_another_name_is_counted_and_can_be_asked_for() -> None:
    spans = [
        span("r", None, 0, 9),
        span("c", "r", 1, 2, {"gen_ai.input.messages": "[]", "prompt_token_ids": [1]}, "chat m"),
        span("t", "r", 3, 4, {"gen_ai.operation.name": "execute_tool", "gen_ai.response.id": "x"}),
    ]
    adapter = TracerTraceToTriplet(llm_call_match=r"openai\.chat\.completion")
    assert adapter.adapt(spans) == []
    assert adapter.report.left_out == {("call", Reason.NAME_MISMATCH): 1}
    assert "1 call (span name does not match llm_call_match)" in str(adapter.report)
    (triplet,) = TracerTraceToTriplet().adapt(spans)
    assert triplet.prompt["token_ids"] == [1]


def test_token_ids_that_are_not_integers_are_reported_and_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter = TracerTraceToTriplet()
    with caplog.at_level(logging.WARNING, "agl_core.adapter"):
        (triplet,) = adapter.adapt(
            [
                call(
                    "a",
                    None,
                    0,
                    1,
                    prompt_token_ids=["1", "x"],
                    response_token_ids=[1.0, 2.0],
                    logprobs__content="not json",
                )
            ]
        )
    assert triplet.prompt["token_ids"] == []
    assert triplet.response == {"token_ids": [1, 2], "raw_content": []}
    assert adapter.report.repaired == {
        ("call", Repair.BAD_TOKEN_IDS): 1,
        ("call", Repair.BAD_LOGPROBS): 1,
    }
    assert ["span a" in record.message for record in caplog.records] == [True, True]


def test_final_reward_overwrites_the_last_one() -> None:
    tree = TraceTree.from_spans(
        [span("r", None, 0, 9), call("a", "r", 1, 2), call("b", "r", 3, 4), reward("x", "r", 5, 1)]
    )
    triplets = tree_to_triplets(tree, CallRules(CALL), final_reward=-1.0)
    assert [t.reward for t in triplets] == [None, -1.0]
    assert tree_to_triplets(tree, CallRules("nothing"), final_reward=1.0) == []


OPERATION_OF_TWO: dict[str, Any] = {
    "agentlightning.operation.output.prompt_token_ids": [1, 2],
    "agentlightning.operation.input.messages.0.role": "user",
    "agentlightning.operation.input.messages.0.content": "q",
    "agentlightning.operation.output.choices.0.message.role": "assistant",
    "agentlightning.operation.output.choices.0.message.content": "a",
    "agentlightning.operation.output.choices.0.token_ids": [10, 11],
    "agentlightning.operation.output.choices.1.message.role": "assistant",
    "agentlightning.operation.output.choices.1.message.content": "b",
}
ENTRIES = [[{"token": "a", "logprob": -1.0}], [{"token": "b", "logprob": -2.0}]]
INFERENCE_OF_TWO: dict[str, Any] = {
    "openinference.span.kind": "LLM",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "q",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "a",
    "llm.output_messages.1.message.role": "assistant",
    "llm.output_messages.1.message.content": "b",
}
OUTPUT_OF_TWO: dict[str, Any] = {
    "id": "two",
    "prompt_token_ids": [1, 2],
    "choices": [
        {"token_ids": [10, 11], "logprobs": {"content": ENTRIES[0]}},
        {"token_ids": [20], "logprobs": {"content": ENTRIES[1]}},
    ],
}


@pytest.mark.parametrize(
    ("recorded", "ids"),
    [
        (OPERATION_OF_TWO, []),
        ({**OPERATION_OF_TWO, "agentlightning.operation.output.choices.1.token_ids": [20]}, [20]),
        ({**INFERENCE_OF_TWO, "output.value": json.dumps(OUTPUT_OF_TWO)}, [20]),
        (
            {**INFERENCE_OF_TWO, "prompt_token_ids": [1, 2], "response_token_ids": [10, 11]},
            [],
        ),
    ],
    ids=["operation without ids", "operation", "openinference", "flat key without ids"],
)
def test_the_tokens_of_one_choice_are_never_those_of_another(
    recorded: dict[str, Any], ids: list[int]
) -> None:
    said = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "q",
        "gen_ai.prompt.1.role": "assistant",
        "gen_ai.prompt.1.content": "b",
        "gen_ai.prompt.2.role": "user",
        "gen_ai.prompt.2.content": "more",
        "prompt_token_ids": [7],
        "response_token_ids": [8],
    }
    spans = [
        span("agent", None, 0, 9),
        span("two", "agent", 1, 2, recorded, CALL),
        span("next", "agent", 3, 4, said, CALL),
    ]
    adapter = TracerTraceToTriplet()
    triplet, _ = adapter.adapt(spans)
    assert triplet.response["token_ids"] == ids
    expected = ENTRIES[1] if "output.value" in recorded else None
    assert triplet.response.get("logprobs") == expected
    assert adapter.report.left_out == {("choice", Reason.OTHER_CHOICE): 1}
    assert adapter.report.repaired == {}


def test_the_order_of_calls_is_that_of_their_times_and_not_of_the_tree() -> None:
    two: dict[str, Any] = {"gen_ai.response.finish_reasons": ["stop", "stop"]}
    first = call("first", "late", 1, 2, response_token_ids__1=[20])
    first.attributes.update(two)
    following = call("next", "early", 3, 4, prompt_token_ids=[1, 2, 20, 5])
    spans = [
        span("agent", None, 0, 9),
        span("early", "agent", 0, 9),  # whose first call is the second
        span("late", "agent", 0, 9),
        following,
        first,
    ]
    report = AdapterReport()
    tree = TraceTree.from_spans(spans)
    triplets = tree_to_triplets(tree, CallRules(CALL), final_reward=1.0, report=report)
    tokens = [(one.response["token_ids"], one.reward) for one in triplets]
    assert tokens == [([3], 1.0), ([20], None)]
    assert report.left_out == {("choice", Reason.OTHER_CHOICE): 1}


def test_opentelemetry_spans_are_converted() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("agent", attributes={"agent.name": "writer"}):
        with tracer.start_as_current_span(CALL) as current:
            current.set_attributes({"prompt_token_ids": [1], "response_token_ids": [2, 3]})
        tracer.start_span("reward", attributes={"agentlightning.reward.0.value": 0.75}).end()
    spans = exporter.get_finished_spans()
    assert all(isinstance(item, ReadableSpan) for item in spans)
    (triplet,) = TracerTraceToTriplet()(spans)  # pyright: ignore[reportArgumentType]
    assert triplet.response["token_ids"] == [2, 3]
    assert triplet.reward == 0.75
    assert triplet.metadata["agent_name"] == "writer"
    provider.shutdown()


def test_an_adapter_travels_and_its_report_starts_empty() -> None:
    adapter = pickle.loads(pickle.dumps(TracerTraceToTriplet(agent_match="x")))
    assert adapter.rules.agent_match == "x"
    assert adapter.report == AdapterReport()


def test_no_spans_raise() -> None:
    with pytest.raises(ValueError, match="at least one span"):
        TracerTraceToTriplet().adapt([])


def test_visualize_needs_spans_and_returns_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, str, str | None]] = []

    def draw(tree: TraceTree, filename: str, match: str | None) -> None:
        drawn.append((tree.id, filename, match))

    monkeypatch.setitem(sys.modules, "agl_trace", SimpleNamespace(visualize_tree=draw))
    tree = TracerTraceToTriplet().visualize([call("a", None, 0, 1)], "out", "chat")
    assert tree.id == "a"
    assert drawn == [("a", "out", "chat")]


def test_visualize_without_the_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agl_trace", None)
    with pytest.raises(MissingDependencyError, match=r"is not installed: .*agl.trace"):
        TracerTraceToTriplet().visualize([call("a", None, 0, 1)])
