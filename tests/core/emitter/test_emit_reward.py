from __future__ import annotations

import math
from decimal import Decimal

import pytest

from agl_core.adapter import read_reward
from agl_core.emitter import (
    emit_annotation,
    emit_message,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    reward,
)
from agl_core.otel import extract_links_from_attributes, make_link_attributes
from agl_core.semconv import RewardPydanticModel
from agl_core.types import Span


def reward_span(**attributes: object) -> Span:
    name = str(attributes.pop("name", "agentlightning.annotation"))
    span = Span.from_attributes(attributes={}, name=name)
    span.attributes.update(attributes)  # type: ignore[arg-type]
    return span


@pytest.mark.parametrize("value", [1, True, 1.0, Decimal(1)])
async def test_a_number_is_the_primary_reward(recorder, value):
    core = emit_reward(value)
    span = recorder.span
    assert span.name == core.name == "agentlightning.annotation"
    assert span.status.status_code == "OK"
    assert (
        span.attributes
        == core.attributes
        == {
            "agentlightning.reward.0.name": "primary",
            "agentlightning.reward.0.value": 1.0,
        }
    )
    assert type(span.attributes["agentlightning.reward.0.value"]) is float
    assert get_reward_value(span) == 1.0
    assert get_rewards_from_span(span) == [RewardPydanticModel(name="primary", value=1.0)]


async def test_several_rewards_keep_their_order_after_the_primary_one(recorder):
    emit_reward({"speed": 1, "accuracy": 0.5, "cost": 2}, primary_key="accuracy")
    rewards = get_rewards_from_span(recorder.span)
    assert [(entry.name, entry.value) for entry in rewards] == [
        ("accuracy", 0.5),
        ("speed", 1.0),
        ("cost", 2.0),
    ]
    assert get_reward_value(recorder.span) == 0.5


async def test_attributes_are_flattened_and_links_come_back(recorder):
    links = make_link_attributes({"gen_ai.response.id": "r1"})
    emit_reward(1.0, attributes={**links, "why": {"matched": ["a", "b"]}, "when": None})
    span = recorder.span
    assert span.attributes["why.matched"] == ["a", "b"]
    assert span.attributes["when"] == "null"
    (link,) = extract_links_from_attributes(span.attributes)
    assert (link.key_match, link.value_match) == ("gen_ai.response.id", "r1")


@pytest.mark.parametrize(
    ("value", "key", "error", "message"),
    [
        ("1.0", None, TypeError, "must be a number, not str"),
        (None, None, TypeError, "must be a number, not NoneType"),
        ([1], None, TypeError, "must be a number, not list"),
        (math.nan, None, ValueError, "'primary' is nan"),
        (10**400, None, ValueError, "must be finite: int too large"),
        (-math.inf, None, ValueError, "'primary' is -inf"),
        ({"a": 1}, None, ValueError, r"one of the rewards \['a'\], not None"),
        ({"a": 1}, "b", ValueError, "not 'b'"),
        ({"a": 1, "b": "x"}, "a", ValueError, "reward 'b': .* not str"),
        ({"a": 1, "b": math.inf}, "a", ValueError, "'b' is inf"),
    ],
)
async def test_invalid_rewards_are_rejected(recorder, value, key, error, message):
    with pytest.raises(error, match=message):
        emit_reward(value, primary_key=key)
    assert recorder.spans == []


def test_without_a_tracer_it_raises_unless_it_stays_here():
    with pytest.raises(RuntimeError, match="propagate=False"):
        emit_reward(1.0)
    core = emit_reward(1.0, propagate=False)
    assert core.attributes["agentlightning.reward.0.value"] == 1.0
    assert core.start_time == core.end_time is not None


async def test_not_propagating_records_nothing(recorder):
    emit_reward(1.0, propagate=False)
    assert recorder.spans == []


# -- reading ----------------------------------------------------------------------------------


def test_other_spans_carry_no_reward():
    span = reward_span(name="x", reward=1.0, other=2)
    assert get_reward_value(span) is None
    assert get_rewards_from_span(span) == []
    assert not is_reward_span(span)


def test_the_oldest_format_is_read():
    assert get_reward_value(reward_span(reward=3)) == 3.0


@pytest.mark.parametrize("key", ["agentops.task.output", "agentops.entity.output"])
@pytest.mark.parametrize(
    "output", ['{"type": "reward", "value": 2}', {"type": "reward", "value": 2}]
)
def test_agentops_outputs_are_read_with_a_warning(key: str, output: object):
    with pytest.warns(DeprecationWarning, match="emit_reward"):
        assert get_reward_value(reward_span(name="op", **{key: output})) == 2.0


@pytest.mark.parametrize(
    "output", ["plain text", "[1]", '{"type": "other", "value": 1}', '{"type": "reward"}', 5]
)
def test_other_agentops_outputs_are_not_rewards(output: object):
    assert get_reward_value(reward_span(name="op", **{"agentops.task.output": output})) is None


def test_an_integer_that_no_float_holds_is_no_reward():
    huge = reward_span(**{"agentlightning.reward.0.value": 10**400})
    assert get_reward_value(huge) is None
    assert math.isnan(read_reward(huge) or 0.0)
    assert find_final_reward([huge]) is None


def test_malformed_rewards_raise():
    with pytest.raises(ValueError, match="number rewards"):
        get_rewards_from_span(reward_span(**{"agentlightning.reward.1.value": 1.0}))
    with pytest.raises(ValueError, match="name"):
        get_rewards_from_span(reward_span(**{"agentlightning.reward.0.value": 1.0}))


async def test_the_final_reward_is_the_last_in_the_order_given(recorder):
    emit_reward(1.0)
    emit_reward(0.0)
    emit_message("done")
    spans = recorder.spans
    assert find_reward_spans(spans) == spans[:2]
    assert find_final_reward(spans) == 0.0
    assert find_final_reward(spans[:1]) == 1.0
    assert find_final_reward(spans[2:]) is None
    assert find_final_reward([]) is None


# -- the deprecated decorator -----------------------------------------------------------------


async def test_the_decorator_emits_what_the_function_returns(recorder):
    with pytest.warns(DeprecationWarning, match="emit_reward"):

        @reward
        def score(text: str) -> float:
            """How long it is."""
            return float(len(text))

    with pytest.warns(DeprecationWarning, match="emit_reward"):

        @reward
        async def score_later(text: str) -> float:
            return float(len(text))

    assert score("abc") == 3.0
    assert await score_later("abcd") == 4.0
    assert score.__name__ == "score" and score.__doc__ == "How long it is."
    assert [get_reward_value(span) for span in recorder.spans] == [3.0, 4.0]


# -- annotations ------------------------------------------------------------------------------


async def test_an_annotation_is_flattened(recorder):
    core = emit_annotation({"a": {"b": 1}, "c": ["x"], "d": [{"e": True}]})
    span = recorder.span
    assert span.attributes == core.attributes == {"a.b": 1, "c": ["x"], "d.0.e": True}
    assert (span.name, span.status.status_code) == ("agentlightning.annotation", "OK")


@pytest.mark.parametrize("value", [None, object(), b"x", (1, 2.0)])
async def test_an_annotation_must_be_storable_as_it_is(recorder, value):
    with pytest.raises(ValueError, match=r"'a\.b'"):
        emit_annotation({"a": {"b": value}})
    assert recorder.spans == []
