"""ATIF documents: what they hold, that they come back, and documents of other programs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from agl_adapter_trajectory import GraphLink, MessageGraph, TraceToTrajectory
from agl_core.errors import InvalidArgumentError
from agl_export import ExportReport, atif_documents, atif_rows, graph_of_atif
from agl_export.atif import AtifOptions

from ..agl_adapter_trajectory.coding_rollout import FOUND, SUMMARY, coding_rollout
from .recorded import call, called, result, said, sample, user


def graph() -> MessageGraph:
    return TraceToTrajectory().graph(coding_rollout())


def completion_ids(document: dict[str, Any]) -> list[list[int]]:
    metrics = [step["metrics"] for step in document["steps"] if "metrics" in step]
    found = [one["completion_token_ids"] for one in metrics]
    for inside in document.get("subagent_trajectories", []):
        found += completion_ids(inside)
    return found


def test_a_conversation_is_a_document_and_a_subagent_is_embedded() -> None:
    main, given_up, title, resumed = documents = atif_documents(
        graph(), session_id="ro-1", agent="claude-code", version="2.0"
    )
    assert [one["trajectory_id"] for one in documents] == ["ro-1/0", "ro-1/2", "ro-1/3", "ro-1/4"]
    assert {one["schema_version"] for one in documents} == {"ATIF-v1.7"}
    assert main["agent"] == {"name": "claude-code", "version": "2.0", "model_name": "m"}
    sources = [(step["step_id"], step["source"], step["message"]) for step in main["steps"]]
    assert sources == [
        (1, "system", "You mend programs."),
        (2, "user", "mend the parser"),
        (3, "agent", ""),
        (4, "agent", "I mend line 3."),
        (5, "user", "Summarise the work."),
        (6, "agent", SUMMARY),
    ]
    started = main["steps"][2]
    arguments = {"description": "search", "prompt": "find the bug"}
    assert started["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "task", "arguments": arguments}
    ]
    (sub,) = main["subagent_trajectories"]
    (observed,) = started["observation"]["results"]
    assert (observed["source_call_id"], observed["content"]) == ("c1", FOUND)
    assert observed["subagent_trajectory_ref"] == [
        {"trajectory_id": sub["trajectory_id"], "session_id": "ro-1"}
    ]
    assert started["metrics"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [10, 11],
        "logprobs": [-0.1, -0.11],
    }
    assert started["timestamp"] == "1970-01-01T00:01:44+00:00"
    assert main["continued_trajectory_ref"] == resumed["trajectory_id"]
    assert [step.get("is_copied_context", False) for step in resumed["steps"]] == [
        True,  # the system message
        False,
        False,
    ]
    assert [step.get("is_copied_context", False) for step in given_up["steps"]] == [
        True, True, True, False,
    ]  # fmt: skip
    assert title["steps"][-1]["extra"]["agl"]["auxiliary"] == "title"
    assert main["final_metrics"] == {
        "total_prompt_tokens": 2 + 5 + 8,
        "total_completion_tokens": 6,
        "total_steps": 6,
    }
    ids = [ids for document in documents for ids in completion_ids(document)]
    assert sorted(ids) == [[10, 11], [12], [13, 14], [15, 16], [17], [20], [21, 22], [92]]


def test_a_graph_comes_back_from_its_documents() -> None:
    before = graph()
    text = json.dumps(atif_documents(before, session_id="ro-1"))
    after = graph_of_atif(json.loads(text))
    assert after.links == before.links
    assert [(node.parent, node.sampled, node.text) for node in after.nodes] == [
        (node.parent, node.sampled, node.text) for node in before.nodes
    ]
    assert [node.message.get("tool_calls") for node in after.nodes] == [
        node.message.get("tool_calls") for node in before.nodes
    ]
    rows = TraceToTrajectory().adapt(coding_rollout())
    assert TraceToTrajectory().adapt(after.spans()) == rows


def test_odd_messages_come_back() -> None:
    image = "data:image/png;base64,AAAA"
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "image_url", "image_url": {"url": "https://x.example/odd"}},
    ]
    broken = called("{not json")
    history = [user("x"), broken, result("3")]
    history[0]["content"] = parts
    spans = [
        call(history[:1], broken, prompt_ids=[1], response_ids=[2]),
        call(history, said("done"), prompt_ids=[1, 2, 3], response_ids=[4]),
    ]
    before = TraceToTrajectory().graph(spans)
    (document,) = atif_documents(before, session_id="s")
    assert document["steps"][0]["message"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"media_type": "image/png", "path": image}},
        {"type": "text", "text": json.dumps(parts[2])},
    ]
    (asked,) = document["steps"][1]["tool_calls"]
    assert (asked["arguments"], asked["extra"]["agl"]["arguments"]) == ({}, "{not json")
    after = graph_of_atif([document])
    assert [n.message.get("tool_calls") for n in after.nodes][1] == broken["tool_calls"]
    assert after.sampled_tokens == before.sampled_tokens == 2


def foreign(steps: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
    agent = {"name": "harbor-agent", "version": "1", "model_name": "big"}
    return {"schema_version": "ATIF-v1.6", "agent": agent, "steps": numbered, **more}


def agent_step(text: str, ids: list[int], **more: Any) -> dict[str, Any]:
    metrics = {"completion_token_ids": ids, "prompt_token_ids": [1], "logprobs": [-0.5] * len(ids)}
    return {"source": "agent", "message": text, "metrics": metrics, **more}


def test_documents_of_other_programs_are_read() -> None:
    grep = {"tool_call_id": "c1", "function_name": "task", "arguments": {"q": 1}}
    sub = foreign(
        [{"source": "user", "message": "find"}, agent_step("found", [5])], trajectory_id="sub"
    )
    observed = {
        "results": [
            {
                "source_call_id": "c1",
                "content": "found",
                "subagent_trajectory_ref": [{"trajectory_id": "sub"}],
            }
        ]
    }
    beginning: list[dict[str, Any]] = [{"source": "user", "message": "go"}]
    first = foreign(
        [
            *beginning,
            agent_step("", [2, 3], tool_calls=[grep], observation=observed),
            agent_step("so far: found", [4], timestamp="2026-01-01T00:00:00Z"),
            {"source": "agent", "message": "moved on", "llm_call_count": 0},
            agent_step("twice", [7], llm_call_count=2),
        ],
        trajectory_id="one",
        continued_trajectory_ref="two",
        subagent_trajectories=[sub],
    )
    copied = {"source": "user", "message": "go", "is_copied_context": True}
    twin = {"source": "agent", "message": "of a lost file", "is_copied_context": True}
    second = foreign([copied, twin, agent_step("end", [6])], trajectory_id="two")
    made = graph_of_atif([first, second])
    tokens = [node.sampled.token_ids for node in made.nodes if node.sampled]
    assert tokens == [[2, 3], [4], [], [5], [6]]
    texts = [node.text for node in made.nodes]
    assert texts == [
        "go", "", "found", "so far: found", "moved on", "twice", "find", "found",
        "of a lost file", "end",
    ]  # fmt: skip
    assert made.nodes[8].parent == 0  # the copied beginning is not there twice
    assert made.links == [GraphLink("sub-agent", 1, 6, "c1"), GraphLink("compaction", 5, 9)]
    (answer,) = [node.sampled for node in made.nodes if node.text == "so far: found"]
    assert answer is not None
    assert (answer.model, answer.start_time, answer.logprobs) == ("big", 1767225600.0, [-0.5])
    rows = TraceToTrajectory().adapt(made.spans())
    assert sum(sum(row.mask) for row in rows) == 5


@pytest.mark.parametrize(
    "document",
    [
        {},
        foreign([], schema_version="ATIF-v2.0"),
        foreign([{"source": "robot", "message": "x"}]),
        foreign([{"source": "agent"}]),
        {**foreign([]), "steps": "none"},
    ],
)
def test_what_is_not_atif_is_an_error(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="document 0 is not ATIF"):
        graph_of_atif([document])


def test_rows_count_the_rollouts() -> None:
    report = ExportReport()
    rows = atif_rows([sample(1.0, *coding_rollout())], AtifOptions(), report)
    assert (report.used, len(rows)) == (1, 4)
    assert rows[0]["extra"]["agl"]["reward"] == 1.0
    (bare, *_) = atif_rows([sample(1.0, *coding_rollout())], AtifOptions(bare=True), report)
    assert bare["extra"]["agl"] == {}
    (unread, *_) = atif_rows([sample(math.nan, *coding_rollout())], AtifOptions(), report)
    assert unread["extra"]["agl"]["reward"] is None
