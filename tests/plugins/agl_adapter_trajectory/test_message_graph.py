"""Rows and graph of a rollout with all that coding agents do beside their task, by hand."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings, strategies as st

from agl_adapter_trajectory import BreakCause, GraphLink, MessageGraph, TraceToTrajectory
from agl_core.genai import output_messages
from agl_credit import row_turns

from .coding_rollout import (
    FIND,
    FINDER,
    FOUND,
    SUMMARY,
    SYSTEM,
    TASK,
    TITLE,
    call,
    called,
    coding_rollout,
    result,
    reward,
    said,
)


def test_rows_and_masks_of_a_coding_agent() -> None:
    adapter = TraceToTrajectory()
    main, finder, resumed = adapter.adapt(coding_rollout())
    assert main.token_ids == [1, 2, 10, 11, 3, 13, 14, 4, 15, 16]
    assert main.mask == [0, 0, 1, 1, 0, 1, 1, 0, 1, 1]
    assert main.logprobs == [0, 0, -0.1, -0.11, 0, -0.13, -0.14, 0, -0.15, -0.16]
    assert (main.span_ids, main.rewards) == (["s2", "s6", "s7"], [None, None, None])
    assert finder.token_ids == [5, 6, 20, 7, 21, 22]
    assert finder.mask == [0, 0, 1, 0, 1, 1]
    assert (finder.span_ids, finder.rewards) == (["s3", "s4"], [None, None])
    assert (resumed.token_ids, resumed.mask) == ([1, 8, 9, 17], [0, 0, 0, 1])
    assert (resumed.span_ids, resumed.rewards) == (["s8"], [1.0])
    assert resumed.certificate.break_cause is BreakCause.EDITED
    assert adapter.report.left_out == {
        ("call", "auxiliary: title"): 1,
        ("call", "auxiliary: given up and made again"): 1,
    }


def test_turns_of_a_coding_agent_for_credit() -> None:
    turns = [
        turn
        for row in TraceToTrajectory().adapt(coding_rollout())
        for turn in row_turns(
            row.token_ids, row.responses, row.logprobs, agent=row.agent, rewards=row.rewards
        )
    ]
    assert [turn.action for turn in turns] == [
        (10, 11), (13, 14), (15, 16), (20,), (21, 22), (17,),
    ]  # fmt: skip
    assert [turn.reward for turn in turns] == [0, 0, 0, 0, 0, 1.0]
    assert [round(turn.surprisal, 6) for turn in turns] == [0.21, 0.27, 0.31, 0.2, 0.43, 0.17]
    # The reward goes to the title and to the answer that nobody read, if they are kept.
    kept = TraceToTrajectory(keep_auxiliary=True).adapt(coding_rollout())
    assert [row.span_ids for row in kept] == [["s1"], ["s2", "s5"], ["s3", "s4"], ["s6", "s7"],
                                              ["s8"]]  # fmt: skip


def shown(graph: MessageGraph) -> list[tuple[int | None, str, list[int]]]:
    return [
        (node.parent, node.text, node.sampled.token_ids if node.sampled else [])
        for node in graph.nodes
    ]


def test_the_graph_of_a_coding_agent() -> None:
    graph = TraceToTrajectory().graph(coding_rollout())
    assert shown(graph) == [
        (None, TITLE["content"], []),
        (0, TASK["content"], []),
        (1, "Parser", [92]),
        (None, SYSTEM["content"], []),
        (3, TASK["content"], []),
        (4, "", [10, 11]),
        (None, FINDER["content"], []),
        (6, FIND["content"], []),
        (7, "", [20]),
        (8, "parser.py:3", []),
        (9, FOUND, [21, 22]),
        (5, FOUND, []),
        (11, "I m", [12]),
        (11, "I mend line 3.", [13, 14]),
        (13, "Summarise the work.", []),
        (14, SUMMARY, [15, 16]),
        (3, f"Continue the work.\n\n{SUMMARY}", []),
        (16, "done", [17]),
    ]
    assert graph.links == [GraphLink("sub-agent", 5, 6, "c1"), GraphLink("compaction", 15, 16)]
    assert (graph.sampled_tokens, graph.trained_tokens) == (12, 10)
    answers = [node.sampled for node in graph.nodes if node.sampled]
    assert [answer.auxiliary for answer in answers if not answer.trained] == [
        "title",
        "given up and made again",
    ]
    assert [answer.reward for answer in answers] == [None] * 7 + [1.0]
    assert [graph.path(leaf)[-1] for leaf in graph.leaves()] == [2, 10, 12, 15, 17]


def test_spans_of_a_graph_give_the_same_rows() -> None:
    spans = coding_rollout()
    graph = TraceToTrajectory().graph(spans)
    rows = TraceToTrajectory().adapt(spans)
    assert TraceToTrajectory().adapt(graph.spans("ro-1", "at-1")) == rows


def test_a_subagent_is_found_by_its_report_alone() -> None:
    started = called("c1", "task", topic="bugs")
    spans = [
        call(1, [SYSTEM, TASK], started, [1], [2]),
        call(2, [FINDER, FIND], said(FOUND), [5], [6]),
        call(3, [SYSTEM, TASK, started, result("c1", FOUND)], said("done"), [1, 2, 3], [4]),
    ]
    assert TraceToTrajectory().graph(spans).links == [GraphLink("sub-agent", 2, 3, "c1")]


def test_each_choice_is_a_message_and_the_one_used_is_trained() -> None:
    both = [{"role": "assistant", "content": text} for text in ("a", "b")]
    two = {
        "gen_ai__output__messages": json.dumps(output_messages([{"message": one} for one in both])),
        "gen_ai__response__finish_reasons": ["length", "stop"],
        "response_token_ids__1": [3],
    }
    spans = [
        call(1, [TASK], said("a"), [1], [2], **two),
        call(2, [TASK, said("b"), TASK], said("c"), [1, 3, 4], [5]),
        reward(3, 1.0),
    ]
    graph = TraceToTrajectory().graph(spans)
    assert shown(graph) == [
        (None, "mend the parser", []),
        (0, "a", [2]),
        (0, "b", [3]),
        (2, "mend the parser", []),
        (3, "c", [5]),
    ]
    trained = [node.sampled.trained for node in graph.nodes if node.sampled]
    assert trained == [False, True, True]
    ends = [node.sampled.finish_reason for node in graph.nodes[1:3] if node.sampled]
    assert ends == ["length", "stop"]


def test_calls_without_messages_follow_each_other_by_their_tokens() -> None:
    spans = []
    for number, prompt, response in ((1, [1], [2]), (2, [1, 2, 3], [4]), (3, [1, 2, 3], [5])):
        span = call(number, [TASK], said("x"), prompt, response)
        for key in ("gen_ai.input.messages", "gen_ai.output.messages"):
            del span.attributes[key]
        spans.append(span)
    assert [(parent, tokens) for parent, _, tokens in shown(TraceToTrajectory().graph(spans))] == [
        (None, [2]),
        (0, [4]),
        (0, [5]),
    ]


@st.composite
def rollouts(draw: st.DrawFn) -> list[Any]:
    """Return the calls of an agent that goes on with any of its earlier answers, or starts anew."""
    ends: list[tuple[list[dict[str, Any]], list[int]]] = [([], [])]
    spans = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        messages, tokens = ends[draw(st.integers(0, len(ends) - 1))]
        # A text has a token of its own, and may be sampled as other tokens.
        asked, told = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        text = ["go", "on", "find the bug"][asked]
        sent = [*messages, {"role": "user", "content": text}]
        prompt = [*tokens, asked]
        ids = [10 + told, *draw(st.lists(st.just(10 + told), max_size=2))]
        answer = said(["a", "b", SUMMARY][told])
        spans.append(call(number, sent, answer, prompt, ids))
        ends.append(([*sent, answer], [*prompt, *ids]))
    random.Random(0).shuffle(spans)
    return spans


@settings(max_examples=150, deadline=None)
@given(rollouts())
def test_every_sampled_token_is_counted_once(spans: list[Any]) -> None:
    graph = TraceToTrajectory().graph(spans)
    rows = TraceToTrajectory().adapt(spans)
    sampled = sum(len(span.attributes["response_token_ids"]) for span in spans)
    assert graph.sampled_tokens == sampled
    assert graph.trained_tokens == sum(sum(row.mask) for row in rows)
    for node in graph.nodes:
        assert node.parent is None or node.parent < node.index
        if node.sampled is not None:  # its messages are those that its call sent
            span = next(one for one in spans if one.span_id == node.sampled.span_id)
            texts = [graph.nodes[index].text for index in graph.path(node.index)[:-1]]
            sent = json.loads(span.attributes["gen_ai.input.messages"])
            assert texts == [message["parts"][0]["content"] for message in sent]
