"""What counts as one call, whoever recorded it and however often."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_adapters import (
    TraceTree,
    distinct_calls,
    ended_by_agent,
    failed_at_server,
    find_auxiliary_calls,
    is_broken,
    total_tokens,
)
from agl_core.types import Span, TraceStatus

CALL = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[]"}


def call(
    id: str,
    parent: str | None = None,
    start: float = 0.0,
    end: float = 1.0,
    *,
    response: str | None = None,
    failed: bool = False,
    **attributes: Any,
) -> Span:
    said = {key.replace("__", "."): value for key, value in attributes.items()}
    return Span.from_attributes(
        attributes=CALL | said | ({"gen_ai.response.id": response} if response else {}),
        rollout_id="ro",
        attempt_id="at",
        sequence_id=int(start * 10) + 1,
        name=id,
        trace_id="1" * 32,
        span_id=id,
        parent_id=parent,
        start_time=start,
        end_time=end,
        status=TraceStatus(status_code="ERROR" if failed else "OK"),
    )


def work(id: str, parent: str | None = None, **attributes: Any) -> Span:
    made = call(id, parent, 0, 99)
    return made.model_copy(
        update={"attributes": {key.replace("__", "."): value for key, value in attributes.items()}}
    )


def counted(spans: Sequence[Span]) -> int:
    return len(distinct_calls(TraceTree.of_any(spans)))


BOTH = {
    "the proxy's span below the client's": [
        call("client", None, 1, 4, response="r"),
        call("proxy", "client", 2, 3, response="r"),
    ],
    "the proxy's span without a parent": [
        call("client", None, 1, 4, response="r"),
        call("proxy", None, 2, 3, response="r"),
    ],
    "both below an agent": [
        work("agent"),
        call("client", "agent", 1, 4, response="r"),
        call("proxy", "agent", 2, 3, response="r"),
    ],
    "a span between them": [
        call("client", None, 1, 4, response="r"),
        work("http", "client"),
        call("proxy", "http", 2, 3, response="r"),
    ],
    "the client does not know the response's id": [
        call("client", None, 1, 4),
        call("proxy", "client", 2, 3, response="r"),
    ],
    "the proxy does not know the response's id": [
        call("client", None, 1, 4, response="r"),
        call("proxy", "client", 2, 3),
    ],
    "neither knows it": [call("client", None, 1, 4), call("proxy", "client", 2, 3)],
    "both failed": [
        call("client", None, 1, 4, failed=True),
        call("proxy", "client", 2, 3, failed=True),
    ],
    "the client gave up": [
        call("client", None, 1, 4, failed=True),
        call("proxy", "client", 2, 3, response="r"),
    ],
    "a framework, its client and the proxy": [
        call("chain", None, 0, 5),
        call("client", "chain", 1, 4, response="r"),
        call("proxy", "client", 2, 3, response="r"),
    ],
    "a first try that failed at the proxy": [
        call("client", None, 1, 9, response="r"),
        call("first", "client", 2, 3, failed=True),
        call("second", "client", 4, 5, response="r"),
    ],
}


@pytest.mark.parametrize("name", BOTH)
def test_a_call_that_several_recorded_is_one(name: str):
    for spans in permutations(BOTH[name]):  # who sends first is chance
        assert counted(spans) == 1
    (found,) = distinct_calls(TraceTree.of_any(BOTH[name]))
    recorded = {span.span_id for span in BOTH[name] if CALL.items() <= span.attributes.items()}
    assert {span.span_id for span in found.spans} == recorded


@given(st.lists(st.sampled_from(sorted(BOTH)), max_size=5), st.randoms(use_true_random=False))
def test_several_calls_are_as_many_as_there_are(names: list[str], chance: Any):
    spans: list[Span] = []
    for number, name in enumerate(names):
        for span in BOTH[name]:
            made = span.model_copy(
                update={
                    "span_id": f"{number}{span.span_id}",
                    "parent_id": span.parent_id and f"{number}{span.parent_id}",
                    "attributes": {
                        key: f"{number}{value}" if key == "gen_ai.response.id" else value
                        for key, value in span.attributes.items()
                    },
                }
            )
            spans.append(made)
    chance.shuffle(spans)
    assert (counted(spans) if spans else 0) == len(names)


DIFFERENT = {
    "two calls in turn": [call("a", None, 1, 2), call("b", None, 3, 4)],
    "two calls at a time": [call("a", None, 1, 9), call("b", None, 2, 3)],
    "an id that a server gives again": [
        call("a", None, 1, 2, response="chatcmpl-1"),
        call("b", None, 3, 4, response="chatcmpl-1"),
    ],
    "one that failed": [call("a", None, 1, 2, failed=True), call("b", None, 3, 4)],
    "one that a recording answered": [
        call("a", None, 1, 2, agl__replay__call=1),
        call("b", None, 3, 4),
    ],
    "a judge's": [
        call("a", None, 1, 2),
        work("grade", agentlightning__reward__0__value=1.0),
        call("b", "grade", 3, 4),
    ],
    "in cycles of parents": [
        call("a", "b", 1, 2, response="r"),
        call("b", "a", 3, 4, response="s"),
    ],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_calls_stay_two(name: str):
    for spans in permutations(DIFFERENT[name]):
        assert counted(spans) == 2


def test_tokens_are_those_of_the_span_that_knows_them():
    spans = [
        call("client", None, 1, 4, response="r", gen_ai__usage__input_tokens=7),
        call(
            "proxy",
            "client",
            2,
            3,
            response="r",
            gen_ai__usage__input_tokens=7,
            gen_ai__usage__output_tokens=2,
            prompt_token_ids=[1] * 7,
            response_token_ids=[5, 6],
        ),
        call("other", None, 5, 6),
    ]
    calls = distinct_calls(TraceTree.of_any(spans))
    assert [one.tokens for one in calls] == [(7, 2), (None, None)]
    assert total_tokens(calls) == (7, 2)
    assert calls[0].call.response_ids == [5, 6]
    assert total_tokens(calls[1:]) == (None, None)
    assert total_tokens([]) == (None, None)


def test_the_rules_of_training_choose_among_them():
    tree = TraceTree.of_any([call("a", None, 1, 2, failed=True), call("b", None, 3, 4)])
    assert [one.node.id for one in distinct_calls(tree)] == ["a", "b"]
    assert find_auxiliary_calls(tree) == {}


@pytest.mark.parametrize(
    ("error", "status", "broken", "at_server"),
    [
        ("client_disconnected", 499, False, False),
        ("CancelledError", None, False, False),
        ("backend_500", 500, True, True),
        ("stream_cut", 200, True, True),
        (None, None, True, True),
        ("backend_400", 400, True, False),
        ("budget_exceeded", 429, True, False),
        ("backend_429", 429, True, True),
    ],
)
def test_a_failure_is_the_agents_or_the_servers(
    error: str | None, status: int | None, broken: bool, at_server: bool
):
    more = {"error__type": error, "http__response__status_code": status}
    said = {key: value for key, value in more.items() if value is not None}
    failed = call("a", failed=True, **said)
    assert (is_broken(failed), failed_at_server(failed)) == (broken, at_server)
    assert ended_by_agent(failed) is not broken
    whole = call("a", **said)
    assert not (is_broken(whole) or failed_at_server(whole) or ended_by_agent(whole))
