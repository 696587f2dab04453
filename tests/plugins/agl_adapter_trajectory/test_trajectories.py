"""Tests of rows of tokens: exact ids, masks, and certificates."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agl_adapter_trajectory import BreakCause, TraceToTrajectory, TrajectoryRow
from agl_adapters import to_messages
from agl_core import semconv
from agl_core.adapter import AdapterReport, Reason, Repair
from agl_core.plugins import get_registry, import_object
from agl_core.types import Span, TraceStatus


def call(
    sequence_id: int,
    prompt: list[int],
    response: list[int],
    *,
    messages: list[tuple[str, str]] | None = None,
    answer: str | None = None,
    agent: str | None = None,
    **attributes: Any,
) -> Span:
    given: dict[str, Any] = {
        "gen_ai.request.model": "m",
        "prompt_token_ids": prompt,
        "response_token_ids": response,
    }
    for index, (role, content) in enumerate(messages or []):
        given[f"gen_ai.prompt.{index}.role"] = role
        given[f"gen_ai.prompt.{index}.content"] = content
    if answer is not None:
        given["gen_ai.completion.0.role"] = "assistant"
        given["gen_ai.completion.0.content"] = answer
    given.update({key.replace("__", "."): value for key, value in attributes.items()})
    return Span.from_attributes(
        attributes={key: value for key, value in given.items() if value is not None},
        sequence_id=sequence_id,
        span_id=f"s{sequence_id}",
        trace_id="t" * 32,
        parent_id=agent,
        start_time=float(2 * sequence_id),
        end_time=float(2 * sequence_id + 1),
        name=semconv.SPAN_MODEL_CALL,
    )


def rows_of(*spans: Span) -> list[TrajectoryRow]:
    return TraceToTrajectory().adapt(list(spans))


def causes(*spans: Span) -> list[tuple[BreakCause | None, int | None, int]]:
    return [
        (row.certificate.break_cause, row.certificate.broken_from, row.certificate.broken_at)
        for row in rows_of(*spans)
    ]


def test_calls_that_continue_each_other_become_one_row() -> None:
    logprobs = json.dumps([{"token": "a", "logprob": -0.25}, {"token": "b", "logprob": -0.5}])
    adapter = TraceToTrajectory()
    reward = Span.from_attributes(
        attributes={"agentlightning.reward.0.value": 2.0}, sequence_id=9, start_time=99.0
    )
    (row,) = adapter.adapt(
        [
            call(2, [1, 2, 3, 4, 5], [6], logprobs__content='[{"logprob": -1.0}]'),
            call(1, [1, 2], [3, 4], logprobs__content=logprobs, agentlightning__model_version=7),
            reward,
        ]
    )
    assert row.token_ids == [1, 2, 3, 4, 5, 6]
    assert row.mask == [0, 0, 1, 1, 0, 1]
    assert row.logprobs == [0.0, 0.0, -0.25, -0.5, 0.0, -1.0]
    assert row.prompt_length == 2
    assert row.responses == [(2, 4), (5, 6)]
    assert row.rewards == [None, 2.0]
    assert row.reward == 2.0
    assert row.span_ids == ["s1", "s2"]
    assert row.agent == "*"
    certificate = row.certificate
    assert certificate.ids_present is True
    assert certificate.logprobs_present is True
    assert certificate.models == ["m"]
    assert certificate.model_versions == ["7"]
    assert certificate.break_cause is None
    assert adapter.report.produced == {"rows": 1}
    assert adapter.report.left_out == {}


def test_a_reward_that_is_emitted_and_returned_is_of_the_last_call_alone() -> None:
    adapter = TraceToTrajectory()
    rewards = [
        Span.from_attributes(
            attributes={"agentlightning.reward.0.value": value}, sequence_id=n, start_time=time
        )
        for n, (time, value) in enumerate([(3.5, 0.25), (99.0, 1.0), (99.5, 1.0)], start=7)
    ]
    (row,) = adapter.adapt(
        [call(1, [1], [2]), call(2, [1, 2, 3], [4]), call(3, [1, 2, 3, 4, 5], [6]), *rewards]
    )
    assert row.rewards == [0.25, None, 1.0]
    assert adapter.report.left_out == {("reward", Reason.REPLACED): 1}


def test_messages_are_parsed_only_to_name_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[list[Any]] = []

    def counted(messages: list[Any], shape: Any) -> list[dict[str, Any]]:
        parsed.append(messages)
        return to_messages(messages, shape)

    monkeypatch.setattr("agl_adapters.recorded_calls.to_messages", counted)
    first = call(1, [1], [2], messages=[("user", "a")], answer="b")
    second = call(2, [1, 2, 3], [4], messages=[("user", "a"), ("assistant", "b")], answer="c")
    assert len(rows_of(first, second)) == 1
    assert parsed == []
    assert len(rows_of(first, second, call(3, [9], [4], messages=[("user", "d")]))) == 2
    # The first row's last call with its answer, and the new one, for the rules that find auxiliary
    # calls; then the same to name the break.
    assert len(parsed) == 3 + 3


def test_model_versions_show_an_update_in_the_middle() -> None:
    (row,) = rows_of(
        call(1, [1], [2], agentlightning__model_version="v1"),
        call(2, [1, 2], [3], agentlightning__model_version="v1"),
        call(3, [1, 2, 3], [4], agentlightning__model_version="v2"),
    )
    assert row.certificate.model_versions == ["v1", "v2"]
    assert row.certificate.logprobs_present is False
    assert row.reward is None


FIRST = call(1, [1, 2, 3], [4, 5, 6])


@pytest.mark.parametrize(
    ("second", "cause", "shared"),
    [
        (call(2, [1, 2, 3], [7]), BreakCause.RESAMPLED, 3),
        (call(2, [1, 2], [7]), BreakCause.TRUNCATED, 2),
        (call(2, [1, 3, 4, 5, 6, 9], [7]), BreakCause.EDITED, 1),
        (call(2, [1, 2, 3, 4, 55, 9], [7]), BreakCause.RETOKENISED, 4),
        (call(2, [9, 2, 3, 4, 5, 6, 7], [7]), BreakCause.EDITED, 0),
    ],
)
def test_a_break_is_named_from_the_tokens(second: Span, cause: BreakCause, shared: int) -> None:
    assert causes(FIRST, second) == [(None, None, 0), (cause, 0, shared)]


def test_a_truncated_history_differs_from_an_edited_answer() -> None:
    prompt, answer = list(range(100, 130)), list(range(200, 230))
    window = [*prompt[:5], *prompt[15:], *answer, 1]
    cut = [*prompt, *answer[:3], *answer[13:], 1]
    first = call(1, prompt, answer)
    assert causes(first, call(2, window, [7]))[1] == (BreakCause.TRUNCATED, 0, 5)
    assert causes(first, call(2, cut, [7]))[1] == (BreakCause.EDITED, 0, 33)


SENT = [("system", "s"), ("user", "u")]
TOLD = call(1, [1, 2, 3], [4, 5, 6], messages=SENT, answer="think a")


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        ([*SENT, ("assistant", "think a"), ("user", "v")], BreakCause.RETOKENISED),
        ([*SENT, ("assistant", "a"), ("user", "v")], BreakCause.EDITED),
        ([("system", "other"), *SENT[1:], ("assistant", "think a")], BreakCause.EDITED),
        ([("system", "s"), ("assistant", "think a"), ("user", "v")], BreakCause.TRUNCATED),
        ([("assistant", "think a"), ("user", "v")], BreakCause.TRUNCATED),
    ],
)
def test_messages_tell_a_new_tokenisation_from_an_edit(
    messages: list[tuple[str, str]], cause: BreakCause
) -> None:
    second = call(2, [1, 2, 3, 4, 99, 7], [8], messages=messages, answer="b")
    assert causes(TOLD, second)[1] == (cause, 0, 4)


def test_agents_and_models_have_rows_of_their_own() -> None:
    agents = [
        Span.from_attributes(
            attributes={"agent.name": name}, span_id=name, trace_id="t" * 32, parent_id=None
        )
        for name in ("writer", "critic")
    ]
    rows = rows_of(
        *agents,
        call(1, [1], [2], agent="writer"),
        call(2, [1, 2], [3], agent="critic"),
        call(3, [1, 2, 4], [5], agent="writer"),
        call(4, [1, 2, 3], [6], agent="critic", gen_ai__request__model="big"),
        call(5, [1, 2, 3, 4], [7], agent="critic"),
    )
    assert [(row.agent, row.token_ids, row.certificate.break_cause) for row in rows] == [
        ("writer", [1, 2, 4, 5], None),
        ("critic", [1, 2, 3, 4, 7], BreakCause.OTHER_AGENT),
        ("critic", [1, 2, 3, 6], BreakCause.OTHER_MODEL),
    ]
    only = TraceToTrajectory(agent_match="writer").adapt(
        [*agents, call(1, [1], [2], agent="writer"), call(2, [1], [2], agent="critic")]
    )
    assert [row.agent for row in only] == ["writer"]


def test_a_branch_continues_the_row_it_came_from() -> None:
    rows = rows_of(
        call(1, [1], [2]),
        call(2, [1], [3]),  # sampled again
        call(3, [1, 2, 8], [4]),  # continues the first row
        call(4, [1, 3, 8], [5]),  # continues the second
    )
    assert [row.token_ids for row in rows] == [[1, 2, 8, 4], [1, 3, 8, 5]]
    assert [row.mask for row in rows] == [[0, 1, 0, 1], [0, 1, 0, 1]]


def test_a_call_without_ids_in_the_middle_shows_on_the_certificate() -> None:
    adapter = TraceToTrajectory()
    rows = adapter.adapt(
        [
            call(1, [1], [2]),
            call(2, [1, 2, 3], [], answer="x"),
            call(3, [1, 2, 3, 4, 5], [6]),
            call(4, [9], [9]),
        ]
    )
    assert [row.token_ids for row in rows] == [[1, 2, 3, 4, 5, 6], [9, 9]]
    assert [row.mask for row in rows] == [[0, 1, 0, 0, 0, 1], [0, 1]]
    assert [row.certificate.ids_present for row in rows] == [False, True]
    assert adapter.report.left_out == {("call", Reason.NO_TOKEN_IDS): 1}


@pytest.mark.parametrize("logprobs", ["[]", '[{"logprob": "x"}]', '[{"token": "x"}]', "{}"])
def test_logprobs_that_do_not_fit_are_not_used(logprobs: str) -> None:
    adapter = TraceToTrajectory()
    (row,) = adapter.adapt([call(1, [1], [2], logprobs__content=logprobs)])
    assert row.logprobs == [0.0, 0.0]
    assert row.certificate.logprobs_present is False
    assert adapter.report.repaired == {("call", Repair.BAD_LOGPROBS): 1}


# -- against the definition ----------------------------------------------------------------------

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Draw calls that continue an earlier context, branch from it, cut it, or start a new one."""
    calls: list[tuple[list[int], list[int]]] = []
    for _ in range(draw(st.integers(1, 9))):
        base: list[int] = []
        if calls and draw(st.integers(0, 4)):
            prompt, response = draw(st.sampled_from(calls))
            base = [*prompt, *response]
            if not draw(st.integers(0, 3)):
                base = base[: draw(st.integers(0, len(base)))]
        calls.append(([*base, *draw(tokens)], draw(tokens)))
    return calls


@settings(max_examples=300)
@given(conversations())
def test_rows_are_exact_and_every_token_is_trained_once(
    calls: list[tuple[list[int], list[int]]],
) -> None:
    rows = rows_of(*[call(i, prompt, response) for i, (prompt, response) in enumerate(calls, 1)])

    # The expected rows, by the definition: compare lists of tokens.
    expected: list[list[int]] = []
    for prompt, response in calls:
        fitting = [row for row in expected if prompt[: len(row)] == row]
        if fitting:
            longest = max(len(row) for row in fitting)
            target = next(row for row in reversed(fitting) if len(row) == longest)
            target[:] = [*prompt, *response]
        else:
            expected.append([*prompt, *response])
    assert [row.token_ids for row in rows] == expected

    seen: list[int] = []
    for index, row in enumerate(rows):
        assert len(row.mask) == len(row.logprobs) == len(row.token_ids)
        assert all(a[1] <= b[0] for a, b in pairwise(row.responses))
        for (start, end), span_id in zip(row.responses, row.span_ids, strict=True):
            prompt, response = calls[int(span_id[1:]) - 1]
            # The row contains exactly the tokens that the model saw and sampled.
            assert row.token_ids[:end] == [*prompt, *response]
            assert row.mask[start:end] == [1] * len(response)
            seen.append(int(span_id[1:]))
        assert sum(row.mask) == sum(end - start for start, end in row.responses)
        certificate = row.certificate
        if index == 0:
            assert certificate.break_cause is None
        else:
            assert certificate.break_cause is not None
            assert certificate.broken_from is not None
            assert certificate.broken_from < index
            shared = rows[certificate.broken_from].token_ids[: certificate.broken_at]
            assert row.token_ids[: certificate.broken_at] == shared
    assert sorted(seen) == list(range(1, len(calls) + 1))


def test_the_hook_names_what_it_builds() -> None:
    _, spec = get_registry().component("adapter", "trajectory")
    assert (spec.kind, spec.name) == ("adapter", "trajectory")
    config = import_object(spec.config)(agent_match="x")
    adapter = import_object(spec.factory)(**dict(config))
    assert isinstance(adapter, TraceToTrajectory)
    assert adapter.rules.agent_match == "x"


def test_the_report_sums_up_what_the_certificates_say():
    adapter = TraceToTrajectory()
    logprobs = json.dumps([{"logprob": -1.0}])
    told: Any = {"logprobs__content": logprobs, "agentlightning__model_version": "v1"}
    _, first = adapter.adapt_with_report(
        [call(1, [1, 2], [3], **told), call(2, [1, 2, 3, 4], [5], **told), call(3, [7], [8])]
    )
    cause = str(BreakCause.EDITED)
    assert first.as_dict()["certificates"] == {
        "rows": 2,
        "tokens": 7,
        "trained_tokens": 3,
        "with_ids": 2,
        "with_logprobs": 1,
        "mixed": 0,
        "altered": 0,
        "continued": 0,
        "versions": {"v1": 1},
        "breaks": {cause: 1},
        "fallbacks": {},
    }
    other: Any = {"agentlightning__model_version": "v2"}
    _, second = adapter.adapt_with_report([call(1, [1], [2], **other)])
    total = first + second
    assert sum([first, second], AdapterReport()) == total
    assert (total + AdapterReport(spans=2)).spans == total.spans + 2
    assert str(total).splitlines()[-1] == (
        "certified: 3 rows of 9 tokens, 4 to train on; token ids in all, logprobs in 1 of 3; "
        f"model versions: v1 in 1, v2 in 1; breaks: 1 ({cause})"
    )
    assert total.certificates.metrics() == {
        "rows": 3.0,
        "rows_with_ids": 1.0,
        "rows_with_logprobs": 1 / 3,
        "rows_of_several_versions": 0.0,
        "rows_of_altered_sampling": 0.0,
        "rows_after_a_break": 1 / 3,
    }


# -- calls that must not be trained as they are ----------------------------------------------------


def failed(span: Span) -> Span:
    return span.model_copy(update={"status": TraceStatus(status_code="ERROR", description="cut")})


def choices(*texts: str) -> dict[str, Any]:
    """Return the attributes of a call with several answers, whose ids are 10, 20, ..."""
    found: dict[str, Any] = {"gen_ai__response__finish_reasons": ["stop"] * len(texts)}
    for number, text in enumerate(texts):
        found[f"gen_ai__completion__{number}__role"] = "assistant"
        found[f"gen_ai__completion__{number}__content"] = text
        if number:
            found[f"response_token_ids__{number}"] = [10 * (number + 1)]
            logprobs = json.dumps([{"token": "x", "logprob": -number}])
            found[f"logprobs__content__{number}"] = logprobs
    return found


def test_a_stream_that_broke_and_was_repeated_is_one_row() -> None:
    adapter = TraceToTrajectory()
    (row,) = adapter.adapt([failed(call(1, [1, 2], [3])), call(2, [1, 2], [3, 4])])
    assert (row.token_ids, row.mask) == ([1, 2, 3, 4], [0, 0, 1, 1])
    assert row.certificate.break_cause is None
    assert adapter.report.left_out == {("call", Reason.BROKEN): 1}


def test_a_call_that_failed_between_two_turns_leaves_no_gap() -> None:
    without_ids = call(2, [], [])
    (row,) = rows_of(call(1, [1], [2]), failed(without_ids), call(3, [1, 2, 3], [4]))
    assert row.mask == [0, 1, 0, 1]
    assert row.certificate.ids_present


def test_the_tokens_that_an_agent_received_before_it_left_are_trained() -> None:
    left = failed(call(1, [1, 2], [3], error__type="client_disconnected"))
    (row,) = rows_of(left)
    assert row.mask == [0, 0, 1]


def test_a_call_with_fewer_ids_than_sampled_tokens_is_a_gap() -> None:
    adapter = TraceToTrajectory()
    spans = [
        call(1, [1], [2], gen_ai__usage__output_tokens=1),
        call(2, [1, 2, 3], [4], gen_ai__usage__output_tokens=30),
        call(3, [1, 2, 3, 4, 5, 6], [7], gen_ai__usage__output_tokens=1),
    ]
    (row,) = adapter.adapt(spans)
    assert row.mask == [0, 1, 0, 0, 0, 0, 1]
    assert not row.certificate.ids_present
    assert adapter.report.left_out == {("call", Reason.INCOMPLETE_IDS): 1}


def test_usage_of_several_choices_counts_the_ids_of_all() -> None:
    more: Any = choices("a", "b")
    first = call(1, [1], [10], gen_ai__usage__output_tokens=2, **more)
    (row,) = rows_of(first, call(2, [1, 20, 3], [4]))
    assert row.mask == [0, 1, 0, 1]


@pytest.mark.parametrize("used", [0, 1, 2])
def test_the_choice_that_the_history_goes_on_with_is_trained(used: int) -> None:
    adapter = TraceToTrajectory()
    given = json.dumps([{"token": "x", "logprob": 0}])
    first = call(1, [1, 2], [10], logprobs__content=given, **choices("a", "b", "c"))
    token = 10 * (used + 1)
    (row,) = adapter.adapt([first, call(2, [1, 2, token, 5], [6])])
    assert row.token_ids == [1, 2, token, 5, 6]
    assert row.mask == [0, 0, 1, 0, 1]
    assert row.logprobs[2] == -used
    assert adapter.report.left_out == {("choice", Reason.OTHER_CHOICE): 2}


def test_the_choice_is_found_by_its_text_if_its_tokens_were_encoded_again() -> None:
    first = call(1, [1, 2], [10], messages=[("user", "q")], **choices("a", "b"))
    said = [("user", "q"), ("assistant", "b"), ("user", "more")]
    rows = rows_of(first, call(2, [1, 2, 7, 8, 5], [6], messages=said))
    assert [row.token_ids for row in rows] == [[1, 2, 20], [1, 2, 7, 8, 5, 6]]


def test_choices_of_which_none_is_known_to_be_used_are_left_out() -> None:
    adapter = TraceToTrajectory()
    assert adapter.adapt([call(1, [1, 2], [10], **choices("a", "b"))]) == []
    assert adapter.report.left_out == {("call", Reason.SEVERAL_CHOICES): 1}


@pytest.mark.parametrize(
    ("name", "value", "altered"),
    [
        ("presence_penalty", 0.5, True),
        ("presence_penalty", 0, False),
        ("repetition_penalty", 1.1, True),
        ("repetition_penalty", 1.0, False),
        ("min_p", 0.05, True),
        ("logit_bias", '{"5":-100}', True),
        ("logit_bias", "{}", False),
        ("bad_words", '["no"]', True),
        ("response_format", '{"type":"json_object"}', True),
        ("response_format", '{"type":"text"}', False),
        ("text", '{"verbosity":"low"}', False),
        ("text", '{"format":{"type":"json_schema"}}', True),
        ("tool_choice", "required", True),
        ("tool_choice", "auto", False),
        ("tool_choice", '{"type":"function","function":{"name":"f"}}', True),
        ("user", "somebody", False),
    ],
)
def test_sampling_that_the_log_probabilities_do_not_know_is_on_the_certificate(
    name: str, value: Any, altered: bool
) -> None:
    (row,) = rows_of(call(1, [1], [2], **{f"gen_ai__request__{name}": value}))
    assert row.certificate.altered_sampling == ([name] if altered else [])


def test_sampling_that_the_proxy_added_is_on_the_certificate() -> None:
    added = '{"repetition_penalty": 1.2, "min_p": 0.0, "presence_penalty": 0.5, "top_p": 0.9}'
    own: dict[str, Any] = {"gen_ai__request__presence_penalty": 0}
    defaults = call(1, [1], [2], **own, agl__proxy__request_defaults=added)
    (row,) = rows_of(defaults)
    assert row.certificate.altered_sampling == ["repetition_penalty"]


@pytest.mark.parametrize("ids_of_client", [True, False])
def test_the_certificate_has_what_only_the_proxys_span_says(ids_of_client: bool) -> None:
    def recorded(number: int, prompt: list[int], response: list[int], **more: Any) -> list[Span]:
        attributes: dict[str, Any] = {"gen_ai.response.id": f"r{number}"}
        proxy = call(number, prompt, response, **more)
        client = call(number, prompt, response)
        if not ids_of_client:
            del client.attributes["prompt_token_ids"], client.attributes["response_token_ids"]
        client.name, client.span_id = "openai.chat.completion", f"c{number}"
        proxy.parent_id = client.span_id
        for one in (client, proxy):
            one.attributes.update(attributes)
        return [client, proxy]

    continued = {semconv.PROMPT_HISTORY: "continued"}
    fallback = {semconv.PROMPT_HISTORY: "fallback", semconv.PROMPT_HISTORY_REASON: "edited"}
    spans = [
        *recorded(1, [1], [2], gen_ai__request__min_p=0.1, agentlightning__model_version="1"),
        *recorded(2, [1, 2, 3], [4], agentlightning__model_version="1", **continued),
        *recorded(3, [1, 2, 3, 4, 5], [6], agentlightning__model_version="1", **fallback),
    ]
    (row,) = rows_of(*spans)
    assert row.certificate.continued == 1
    assert row.certificate.fallbacks == ["edited"]
    assert row.certificate.altered_sampling == ["min_p"]
    assert row.span_ids == ["c1", "c2", "c3"]
