"""Rows of an export in TRL's format; runs without TRL."""

from __future__ import annotations

from fine_tune import to_trl
from sft_tasks import TASKS


def test_tokens_are_unchanged():
    row = {"input_ids": [1, 2], "labels": [-100, 2], "reward": 1.0, "task": "t"}
    assert to_trl([row]) == [{"input_ids": [1, 2], "labels": [-100, 2]}]


def test_each_answer_is_a_row_with_the_messages_before_it():
    user, first, tool, second = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "content": "c", "tool_call_id": "1"},
        {"role": "assistant", "content": "d"},
    )
    rows = to_trl([{"messages": [user, first, tool, second], "tools": [{}], "reward": 1.0}])
    assert rows == [
        {"prompt": [user], "completion": [first], "tools": [{}]},
        {"prompt": [user, first, tool], "completion": [second], "tools": [{}]},
    ]
    assert to_trl([{"messages": [first, user]}]) == []


def test_wrong_choices_are_wrong_and_different():
    for task in TASKS:
        assert len(set(task["choices"])) == 4
        assert task["answer"] in task["choices"]
