"""Tests of the rules that find auxiliary calls, and of what they must never find."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_adapters import (
    LlmProxyTraceToTriplet,
    ModelCall,
    TracerTraceToTriplet,
    TraceToMessages,
    auxiliary_calls,
)
from agl_core import semconv
from agl_core.adapter import RecordedCall
from agl_core.types import Span, TraceStatus

Message = tuple[str, str]


def proxied(
    number: int,
    messages: list[Message],
    answer: str,
    prompt: list[int] | None = None,
    response: list[int] | None = None,
    *,
    tools: int = 0,
    error: str | None = None,
    seconds: float = 1.0,
    **attributes: Any,
) -> Span:
    """Return a call as an LLM proxy records it; without ids the messages alone say what follows."""

    def parts(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "parts": [{"type": "text", "content": text}]}

    given: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": f"r{number}",
        "gen_ai.input.messages": json.dumps([parts(*one) for one in messages]),
        "gen_ai.output.messages": json.dumps([parts("assistant", answer)]),
        "prompt_token_ids": prompt,
        "response_token_ids": response,
        "error.type": error,
    }
    if tools:
        given["gen_ai.tool.definitions"] = json.dumps([{"type": "function"}] * tools)
    given |= {key.replace("__", "."): value for key, value in attributes.items()}
    return Span.from_attributes(
        attributes={key: value for key, value in given.items() if value is not None},
        sequence_id=number,
        span_id=f"s{number}",
        trace_id="t" * 32,
        start_time=float(2 * number),
        end_time=2 * number + seconds,
        name=semconv.SPAN_MODEL_CALL,
        status=TraceStatus(status_code="ERROR" if error else "OK"),
    )


def found(*spans: Span) -> dict[str, str]:
    return auxiliary_calls([(span, ModelCall(span.attributes)) for span in spans])


SYSTEM = ("system", "You mend programs.")
TASK = ("user", "mend the parser")
TITLE = ("system", "Generate a short title for this conversation. Reply with the title only.")
MAIN = [
    proxied(1, [SYSTEM, TASK], "reading", tools=3),
    proxied(3, [SYSTEM, TASK, ("assistant", "reading"), ("user", "x")], "done", tools=3),
]


@pytest.mark.parametrize(
    ("messages", "purpose"),
    [
        ([TITLE, TASK], "title"),
        ([("system", "You are a title generator. Output a thread title."), TASK], "title"),
        (
            [("user", "Summarize this coding conversation in under 50 characters.\nmend it")],
            "title",
        ),
        (
            [("user", "Provide a concise, 5-word-or-less title for the conversation: hi")],
            "title",
        ),
        (
            [("system", "Analyze if this message indicates a new conversation topic."), TASK],
            "topic check",
        ),
        (
            [
                SYSTEM,
                TASK,
                ("assistant", "reading"),
                ("user", "Analyze your last turn and decide who should speak next."),
            ],
            "next speaker",
        ),
        ([("system", "Generate 1-3 broad tags for the themes of the chat history"), TASK], "tags"),
        (
            [("user", "Generate concise one-line git commit messages for these diffs")],
            "commit message",
        ),
    ],
)
def test_calls_of_known_programs_are_recognised(messages: list[Message], purpose: str) -> None:
    assert found(MAIN[0], proxied(2, messages, "Mending"), MAIN[1]) == {"s2": purpose}


WORDINGS = {
    "title": [
        "Please write a 5-10 word title for the following conversation:\n\nUser: hi",
        "You are coming up with a succinct title and git branch name for a coding session",
        "Generate a title (3-7 words) that captures the main goal of this coding session.",
        "Generate a brief title that would help the user find this conversation later.",
        "You are a title generator. You output ONLY a thread title. Nothing else.",
        "Generate a concise, 3-5 word title with an emoji summarizing the chat history.",
        "Write a concise title for this conversation in the detected language.",
        "Generate a short title for a conversation based on the user's query.",
        "Summarize the user's conversation into a short title within 10 words.",
        "provide a concise description of this session in 4 words or less",
    ],
    "suggested prompts": [
        "Suggest 3-5 follow-up questions or prompts that the user might ask next"
    ],
    "tags": ["Generate 1-3 broad tags categorizing the main themes of the chat history"],
    "next speaker": [
        "Based on your immediately preceding response, determine who should logically speak next"
    ],
    "commit message": [
        "You generate concise, one-line Git commit messages based on the provided diffs."
    ],
    "loop check": ["Determine whether the conversation is stuck in an unproductive loop."],
}


@pytest.mark.parametrize(
    ("text", "purpose"), [(text, purpose) for purpose in WORDINGS for text in WORDINGS[purpose]]
)
def test_the_wording_of_known_programs_is_recognised(text: str, purpose: str) -> None:
    asked = [("system", text), TASK]
    assert found(MAIN[0], proxied(2, asked, "x"), MAIN[1]) == {"s2": purpose}


@pytest.mark.parametrize(
    "task",
    [
        "Write a headline for the article about the peace session in Geneva.",
        "Write a headline for the article about the conversation of the ministers.",
        "Suggest a title for the essay on this conversation.",
        "Write a title for the session of the parliament.",
        "Write a title for this conversation between two spies.",
        "Give the dialogue below a title. Dialogue: A: Hi. B: Hello.",
        "Write a summary of the chat and the title of the book that it is about.",
        "Extract the thread titles from this page of the forum, and only those.",
        "You are a title generator for scientific papers.",
        "Summarize this conversation in under 100 words.",
        "Summarize this dialogue in 3 sentences.",
        "Give a description of this session in 100 words or less.",
        "Decide whether this message is a new or an old topic of the newsletter.",
        "You moderate a debate. Decide who should speak next: Ada or Bob.",
        'Answer as JSON: {"next_speaker": "Ada" or "Bob"}',
        "Generate tags for the talk, by the themes of the session.",
        "Suggest three follow-up questions for the interview session.",
        "Predict what the user will say next.",
        "Generate a git commit message for this diff.",
        "Determine whether the conversation is stuck in a rut.",
    ],
)
def test_a_task_like_an_auxiliary_call_stays(task: str) -> None:
    for asked in ([("user", task)], [("system", task), TASK]):
        assert found(MAIN[0], proxied(2, asked, "x"), MAIN[1]) == {}


def test_a_call_for_a_title_stays_if_nothing_is_the_conversation_that_it_is_about() -> None:
    title = proxied(2, [("user", "Write a title for this conversation:\nAda: Hi!")], "Greeting")
    other = proxied(1, [("user", "How does Ada feel?")], "fine")
    assert found(other, title) == {}
    # It repeats the request of the other, or the other goes on, or the other offers tools.
    quoted = [("user", "Write a title for this conversation:\nUser: How does Ada feel?")]
    assert found(other, proxied(2, quoted, "Ada")) == {"s2": "title"}
    said = [("user", "How does Ada feel?"), ("assistant", "fine"), TASK]
    assert found(other, title, proxied(3, said, "x")) == {"s2": "title"}
    assert found(proxied(1, [TASK], "x", tools=1), title) == {"s2": "title"}
    # A word of a request is not a request.
    assert found(proxied(1, [("user", "da")], "yes"), title) == {}


def test_a_probe_and_a_token_count_are_recognised() -> None:
    quota = proxied(0, [("user", "quota")], "#", gen_ai__request__max_tokens=1)
    count = proxied(2, [SYSTEM, TASK], "I", tools=3, gen_ai__request__max_tokens=1)
    assert found(quota, MAIN[0], count, MAIN[1]) == {"s0": "probe", "s2": "token count"}
    # An agent that reasons first and then answers with one token has no such call.
    letter = proxied(
        4,
        [SYSTEM, TASK, ("assistant", "reading"), ("user", "x"), ("assistant", "done"), TASK],
        "B",
        gen_ai__request__max_tokens=1,
    )
    assert found(quota, *MAIN, letter) == {"s0": "probe"}
    votes = [proxied(n, [SYSTEM, TASK], "A", gen_ai__request__max_tokens=1) for n in (5, 6)]
    assert found(*votes) == {}


def test_an_agent_whose_task_is_a_title_keeps_its_calls() -> None:
    assert found(proxied(1, [TITLE, TASK], "Mending")) == {}
    assert found(proxied(1, [TITLE, TASK], "A"), proxied(2, [TITLE, ("user", "b")], "B")) == {}


def test_the_conversation_itself_is_never_auxiliary() -> None:
    asked = ("user", "Generate a title for this conversation")
    first = proxied(1, [SYSTEM, asked], "Mending")
    more = [SYSTEM, asked, ("assistant", "Mending"), ("user", "and a longer title of this chat")]
    # A title that the conversation goes on with, and one at its end.
    assert found(first, proxied(2, more, "Mending a parser"), proxied(3, [TASK], "x")) == {}
    # The same by tokens, whose messages differ because the agent drops the reasoning.
    first = proxied(1, [SYSTEM, asked], "think: Mending", [1, 2], [3, 4])
    assert found(first, proxied(2, more, "y", [1, 2, 3, 4, 5], [6]), MAIN[0]) == {}


def test_a_call_that_offers_tools_or_has_long_instructions_is_not_a_title() -> None:
    assert found(MAIN[0], proxied(2, [TITLE, TASK], "x", tools=1), MAIN[1]) == {}
    long = ("system", "You help. " * 1000 + TITLE[1])
    assert found(MAIN[0], proxied(2, [long, TASK], "x"), MAIN[1]) == {}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The client closed the connection and made the call again.
        ({"error": "client_disconnected"}, {}, {"s1": "given up and made again"}),
        # It says that it tries again, while the first try is still being answered.
        ({"seconds": 5.0}, {"http__request__resend_count": 1}, {"s1": "given up and made again"}),
        # It tries again after another call, which failed and is not here.
        ({}, {"http__request__resend_count": 1}, {}),
        # It samples the same prompt twice.
        ({}, {}, {}),
        ({"seconds": 5.0}, {}, {}),
    ],
)
@pytest.mark.parametrize("ids", [True, False])
def test_a_call_that_its_client_made_again_is_auxiliary(
    first: dict[str, Any], second: dict[str, Any], expected: dict[str, str], ids: bool
) -> None:
    prompt, one, two = ([1, 2], [3], [4]) if ids else (None, None, None)
    spans = [
        proxied(1, [SYSTEM, TASK], "read", prompt, one, **first),
        proxied(2, [SYSTEM, TASK], "reading", prompt, two, **second),
    ]
    assert found(*spans) == expected
    assert found(spans[0], proxied(2, [TASK], "x", [9] if ids else None, two, **second)) == {}


def test_adapters_leave_auxiliary_calls_out_and_count_them() -> None:
    spans = [
        proxied(1, [SYSTEM, TASK], "reading", [1, 2], [3]),
        proxied(2, [TITLE, TASK], "Mending", [8, 9], [7]),
        proxied(3, [SYSTEM, TASK, ("assistant", "reading"), TASK], "done", [1, 2, 3, 4], [5]),
    ]
    counted = {("call", "auxiliary: title"): 1}
    for make in (TracerTraceToTriplet, LlmProxyTraceToTriplet, TraceToMessages):
        adapter = make()
        assert len(adapter.adapt(spans)) == 2
        assert adapter.report.left_out == counted
        assert len(make(keep_auxiliary=True).adapt(spans)) == 3
    rows = TraceToTrajectory()
    assert [row.span_ids for row in rows.adapt(spans)] == [["s1", "s3"]]
    assert rows.report.left_out == counted
    kept = TraceToTrajectory(keep_auxiliary=True).adapt(spans)
    assert [row.span_ids for row in kept] == [["s1", "s3"], ["s2"]]


def test_an_auxiliary_call_without_token_ids_makes_no_gap() -> None:
    spans = [
        proxied(1, [SYSTEM, TASK], "reading", [1, 2], [3]),
        proxied(2, [TITLE, TASK], "Mending"),
        proxied(3, [SYSTEM, TASK, ("assistant", "reading"), TASK], "done", [1, 2, 3, 4], [5]),
    ]
    (row,) = TraceToTrajectory().adapt(spans)
    assert row.certificate.ids_present
    (row,) = TraceToTrajectory(keep_auxiliary=True).adapt(spans)
    assert not row.certificate.ids_present


HOOKS = """
from agl_core.plugins import CallRuleSpec, hookimpl

@hookimpl
def agl_call_rule():
    return CallRuleSpec("acme", "agl_rule_for_tests:rule", api=1)
"""


def test_a_plugin_adds_a_rule(agl_registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    seen: list[RecordedCall] = []

    def rule(call: RecordedCall) -> str | None:
        seen.append(call)
        if "mood" in call.instructions:
            return "mood"
        raise RuntimeError("odd call")

    rules, hooks = ModuleType("agl_rule_for_tests"), ModuleType("agl_rule_hooks_for_tests")
    vars(rules)["rule"] = rule
    exec(HOOKS, vars(hooks))
    monkeypatch.setitem(sys.modules, rules.__name__, rules)
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    agl_registry.add("call_rule.acme", hooks.__name__)
    mood = proxied(
        2, [("system", "name the mood"), TASK], "glad", tools=2, gen_ai__request__max_tokens=9
    )
    # A rule that fails is logged; the conversation stays whatever a rule says.
    assert found(MAIN[0], mood, MAIN[1]) == {"s2": "mood"}
    (told,) = [call for call in seen if call.span is mood]
    assert (told.request, told.answer, told.tools, told.max_tokens) == (TASK[1], "glad", 2, 9)
