"""Copies of responses, made in the agent's thread."""

from __future__ import annotations

import json
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from pydantic import BaseModel

from agl_tracer_weave.payload import response_to_jsonable


def chat(**entry: Any) -> Any:
    token = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [], **entry}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "é"},
        "logprobs": {"content": [token]},
        "token_ids": [7],
    }
    return ChatCompletion.model_validate(
        {"id": "1", "created": 1, "model": "m", "object": "chat.completion", "choices": [choice]}
    )


def test_later_changes_of_the_agent_do_not_change_the_copy():
    response = chat()
    copy = response_to_jsonable(response)
    entry = response.choices[0].logprobs.content[0]
    entry.logprob, entry.bytes[0] = 1.0, 0
    response.choices[0].message.content = "other"
    response.choices[0].token_ids.clear()
    (choice,) = copy["choices"]
    assert choice["message"]["content"] == "é" and choice["token_ids"] == [7]
    assert json.loads(choice["logprobs.content"])[0] == {
        "token": "é",
        "bytes": [195, 169],
        "logprob": -0.5,
        "top_logprobs": [],
    }
    assert "logprobs" not in choice


def test_all_fields_of_a_token_are_kept():
    top = {"token": "e", "logprob": -2.0, "bytes": None}
    (choice,) = response_to_jsonable(chat(top_logprobs=[top], token_id=7))["choices"]
    (entry,) = json.loads(choice["logprobs.content"])
    assert entry["top_logprobs"] == [top] and entry["token_id"] == 7


def test_malformed_log_probabilities_are_kept():
    logprobs = ChoiceLogprobs.construct(content=["odd", 1])
    choice = Choice.construct(index=0, logprobs=logprobs)
    (found,) = response_to_jsonable(ChatCompletion.construct(choices=[choice]))["choices"]
    assert json.loads(found["logprobs.content"]) == ["odd", 1]


def test_log_probabilities_of_other_shapes_are_unchanged():
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5]}
    choice = {"index": 0, "finish_reason": "stop", "text": "a", "logprobs": logprobs}
    answer = {"id": "1", "created": 1, "model": "m", "object": "text_completion"}
    completion = Completion.model_validate({**answer, "choices": [choice]})
    assert response_to_jsonable(completion) == {**answer, "choices": [choice]}


def test_a_model_that_has_choices_need_not_be_a_response():
    class Question(BaseModel):
        choices: list[str]

    assert response_to_jsonable(Question(choices=["a", "b"])) == {"choices": ["a", "b"]}
    assert response_to_jsonable({"choices": 3}) == {"choices": 3}
