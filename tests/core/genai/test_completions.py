"""Text completions: several prompts in one call, and prompts that are echoed."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.genai import ExtraFields, get_protocol, response_attributes

COMPLETIONS = get_protocol("completions")
ALL = ExtraFields(token_ids=True, logprobs=True, usage=True)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", 1), ([1, 2, 3], 1), (["a", "b"], 2), ([[1, 2], [3]], 2), ([], 1), (None, 1)],
)
@pytest.mark.parametrize(("n", "each"), [(2, 2), (None, 1), (True, 1), (0, 1)])
def test_a_call_asks_for_choices_of_each_prompt(prompt: Any, prompts: int, n: Any, each: int):
    assert COMPLETIONS.choices_of({"prompt": prompt, "n": n}) == prompts * each


@pytest.mark.parametrize(("given", "asked"), [(0, False), (2, False), (None, True), (False, True)])
def test_no_log_probabilities_of_other_tokens_is_a_request_for_those_of_the_sampled(
    given: Any, asked: bool
):
    body = {"prompt": "a", "logprobs": given}
    assert COMPLETIONS.request_extra(body, ALL).logprobs is asked
    assert body["logprobs"] == (given or 0)


def test_a_call_that_echoes_its_prompt_is_asked_for_nothing_that_changes_the_echo():
    body = {"prompt": "a", "echo": True, "stream": True}
    assert COMPLETIONS.request_extra(body, ALL) == ExtraFields(usage=True)
    assert body.keys() == {"prompt", "echo", "stream", "stream_options"}


def echo(prompt: list[int] | None, sampled: list[int], known: int) -> dict[str, Any]:
    """Return an answer of vLLM with log-probabilities of its first ``known`` tokens."""
    tokens = ["The", "sun", "is", "up"][:known]
    logprobs = {
        "tokens": tokens,
        "token_logprobs": [None, -1.0, -2.0, -3.0][:known],
        "top_logprobs": [None, {}, {}, {}][:known],
        "text_offset": [0, 3, 6, 8][:known],
    }
    choice = {
        "index": 0,
        "text": "".join(tokens),
        "logprobs": logprobs,
        "finish_reason": "stop",
        "token_ids": sampled,
        "prompt_token_ids": prompt,
    }
    return {"id": "c", "choices": [choice]}


@pytest.mark.parametrize("prompt", [[1, 2], None])
def test_the_record_has_one_log_probability_for_each_sampled_token(prompt: list[int] | None):
    answer = echo(prompt, [3, 4], 4)
    recorded = COMPLETIONS.recorded_response(answer)
    found = response_attributes(recorded)
    assert found["response_token_ids"] == [3, 4]
    assert found["logprobs.content"] == (
        '[{"token":"is","logprob":-2.0},{"token":"up","logprob":-3.0}]'
    )
    assert recorded["choices"][0]["logprobs"]["text_offset"] == [6, 8]
    assert answer == echo(prompt, [3, 4], 4), "the answer itself is not changed"


def test_log_probabilities_of_a_prompt_alone_are_not_those_of_the_answer():
    recorded = COMPLETIONS.recorded_response(echo([1, 2], [3], 2))
    assert "logprobs.content" not in response_attributes(recorded)


def test_an_answer_without_an_echo_is_recorded_as_it_is():
    answer = echo([9, 9], [1, 2, 3, 4], 4)
    assert COMPLETIONS.recorded_response(answer) == answer
