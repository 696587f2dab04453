"""Conversations and keys of samples."""

from __future__ import annotations

import math

import pytest

from agl_core.adapter import AdapterReport, Reason
from agl_core.errors import InvalidArgumentError
from agl_export import AtifOptions, ExportReport, atif_rows, conversations, task_key
from agl_export.samples import comparable, final_reward, with_arguments

from .recorded import TOOLS, agent, call, called, result, reward, said, sample, user


def test_calls_that_extend_each_other_are_one_conversation():
    first = [user("2+2?")]
    second = [*first, called({"a": 2}), result("4")]
    spans = [
        call(first, called({"a": 2}), tools=True),
        call(second, said("4"), tools=True),
        call([user("something else")], said("yes")),
    ]
    found = conversations(spans)
    assert found == [
        {"messages": [*second, said("4")], "tools": TOOLS},
        {"messages": [user("something else"), said("yes")], "tools": None},
    ]


def test_a_call_sampled_again_is_a_conversation_of_its_own():
    found = conversations([call([user("hi")], said("one")), call([user("hi")], said("two"))])
    assert [one["messages"][-1]["content"] for one in found] == ["one", "two"]


def test_calls_of_judges_and_duplicate_spans_are_left_out():
    judged = reward(1.0)
    judge = call([user("good?")], said("yes")).model_copy(update={"parent_id": judged.span_id})
    seen = call([user("hi")], said("hello"))
    again = seen.model_copy(update={"span_id": "f" * 16})
    report = AdapterReport()
    found = conversations([seen, again, judged, judge], report=report)
    assert [one["messages"] for one in found] == [[user("hi"), said("hello")]]
    assert report.count("call", Reason.IN_REWARD) == 1
    assert report.count("call", Reason.DUPLICATE_RESPONSE) == 1


def test_a_judge_behind_the_proxy_is_known_by_its_time():
    asked = call([user("hi")], said("hello"))
    judge = call([user("good?")], said("yes"))
    assert judge.start_time is not None
    judged = reward(1.0).model_copy(
        update={"start_time": judge.start_time - 0.1, "end_time": judge.start_time + 0.9}
    )
    found = conversations([asked, judge, judged])
    assert [one["messages"][0]["content"] for one in found] == ["hi"]


def test_agents_are_selected_by_name():
    planner = agent("planner")
    inside = call([user("plan")], said("done")).model_copy(update={"parent_id": planner.span_id})
    outside = call([user("else")], said("no"))
    found = conversations([planner, inside, outside], agent_match="^plan")
    assert [one["messages"][0]["content"] for one in found] == ["plan"]


def test_invalid_messages_are_an_error():
    broken = call([user("hi")], said("x"))
    broken.attributes["gen_ai.input.messages"] = '[{"role": "robot", "parts": []}]'
    with pytest.raises(InvalidArgumentError):
        conversations([broken])


def test_comparable_messages_ignore_ids_and_kinds_of_empty_content():
    one = [user("a"), called({"a": 1}, "x"), result("1", "x")]
    two = [user("a"), {**called('{ "a":1 }', "y"), "content": ""}, result("1", "y")]
    assert comparable(one) == comparable(two)
    assert comparable([called({"a": 1})]) != comparable([called({"a": 2})])
    assert comparable([called("not json")]) != comparable([called("other")])


def test_arguments_are_objects_where_they_can_be():
    messages = [user("a"), called({"a": 1}), called("not json"), called("[1]")]
    objects = with_arguments(messages, "object")
    found = [m["tool_calls"][0]["function"]["arguments"] for m in objects[1:]]
    assert found == [{"a": 1}, "not json", "[1]"]
    assert with_arguments(messages, "text") == messages
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'  # unchanged


@pytest.mark.parametrize("text", ['{"x": "\\ud83d"}', '{"x": NaN}', '{"x": ' + "[" * 3000])
def test_arguments_that_no_file_can_hold_stay_text(text: str):
    (found,) = with_arguments([called(text)], "object")
    assert found["tool_calls"][0]["function"]["arguments"] == text
    assert comparable([called(text)]) == comparable([called(text)])
    spans = [call([user("a")], called(text)), call([user("a"), called(text)], said("b"))]
    (row,) = atif_rows([sample(1.0, *spans)], AtifOptions(), ExportReport())
    (asked,) = row["steps"][1]["tool_calls"]
    assert (asked["arguments"], asked["extra"]["agl"]["arguments"]) == ({}, text)


def test_equal_tasks_have_equal_keys():
    assert task_key({"a": 1, "b": [2]}) == task_key({"b": [2], "a": 1})
    assert task_key({"a": 1}) != task_key({"a": "1"})
    assert task_key("ü") == "a23823afdabfa932"  # the same on every machine and in every version


def test_the_final_reward_is_the_last_one():
    assert final_reward([reward(0.5), call([user("x")], said("y"))]) == 0.5
    assert final_reward([reward(0.5), reward(0.25)]) == 0.25
    assert final_reward([call([user("x")], said("y"))]) is None
    unreadable = final_reward([reward("much")])
    assert unreadable is not None
    assert math.isnan(unreadable)
