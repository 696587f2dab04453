"""Answers that an agent does not go on with: the first of two choices, and half of a stream.

The model's prompts are made by a template, as those of a real server: a prompt begins with the
tokens of the prompt and of the answer before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI

from agl_algo_grpo.samples import Decision
from agl_scripted import Reply, Token, tokenize

from .test_grpo_samples import decision_on, outcome_of

FIRST = "one two three four five six seven eight"
SECOND = "un deux trois quatre cinq six sept huit"
LAST = "eins zwei drei vier sechs sieben acht neun"
TASK: dict[str, Any] = {"role": "user", "content": "count"}
MORE: dict[str, Any] = {"role": "user", "content": "more"}


@pytest.fixture(autouse=True)
def template(monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt_tokens(request: Mapping[str, Any]) -> list[Token]:
        parts = [(f" <{message['role']}>", message["content"]) for message in request["messages"]]
        texts = [text for part in [*parts, (" <assistant>", "")] for text in part]
        return [token for text in texts for token in tokenize(text)]

    monkeypatch.setattr("agl_scripted.openai.prompt_tokens", prompt_tokens)


def ids(*texts: str) -> list[int]:
    return [token.id for text in texts for token in tokenize(text)]


def trained(decision: Decision) -> list[list[int]]:
    """Return the tokens of each row that are trained."""
    assert decision.reason == ""
    assert decision.sample is not None
    return [
        [token for token, on in zip(row.token_ids, row.mask, strict=True) if on]
        for row in decision.sample.rows
    ]


async def read(client: AsyncOpenAI, messages: list[dict[str, Any]], **options: Any) -> list[str]:
    """Return the text of each choice."""
    given: Any = messages
    answer: Any = await client.chat.completions.create(model="m", messages=given, **options)
    if not options.get("stream"):
        return [choice.message.content for choice in answer.choices]
    texts: dict[int, str] = {}
    async for chunk in answer:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return [texts[number] for number in sorted(texts)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("used", [0, 1])
async def test_the_choice_that_the_agent_goes_on_with_is_trained(stream: bool, used: int):
    async def agent(client: AsyncOpenAI) -> None:
        choices = await read(client, [TASK], n=2, stream=stream)
        assert choices == [FIRST, SECOND]
        chosen = {"role": "assistant", "content": choices[used]}
        await read(client, [TASK, chosen, MORE], stream=stream)

    decision = decision_on(await outcome_of([Reply(FIRST, others=[SECOND]), Reply(LAST)], agent))
    chosen = (FIRST, SECOND)[used]
    assert trained(decision) == [ids(chosen, LAST)]
    assert decision.sample is not None
    (row,) = decision.sample.rows
    prompt = ids(" <user>", "count", " <assistant>")
    assert row.token_ids == [*prompt, *ids(chosen, " <user>", "more", " <assistant>", LAST)]
    expected = [token.logprob for text in (chosen, LAST) for token in tokenize(text)]
    found = [p for p, on in zip(row.logprobs, row.mask, strict=True) if on]
    assert found == pytest.approx(expected)
    assert row.certificate.logprobs_present


BREAK = b'data: {"error": {"message": "overloaded", "code": 503}}\n\n'


def half(text: str) -> bytes:
    """Return a stream that ends with an error after half of its tokens, with their ids."""

    tokens = tokenize(text)
    events: list[dict[str, Any]] = []
    for number, token in enumerate(tokens[: len(tokens) // 2]):
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"role": "assistant", "content": token.text},
            "token_ids": [token.id],
            "logprobs": {"content": [{"token": token.text, "logprob": token.logprob}]},
        }
        start = {"prompt_token_ids": ids(" <user>", "count", " <assistant>")} if not number else {}
        events.append({"id": "half", "model": "m", "choices": [choice], **start})
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events) + BREAK


@pytest.mark.parametrize(
    "broken", [Reply(FIRST, drop_after=5), Reply(garbage=half(FIRST))], ids=["cut", "error event"]
)
@pytest.mark.parametrize("goes_on", [False, True])
async def test_half_of_a_stream_is_not_trained_if_the_agent_asks_again(
    broken: Reply, goes_on: bool
):
    async def agent(client: AsyncOpenAI) -> None:
        with pytest.raises((APIError, OSError, ValueError)) as caught:
            await read(client, [TASK], stream=True)
        assert not isinstance(caught.value, ValueError) or "peer" in str(caught.value)
        (answer,) = await read(client, [TASK], stream=True)
        assert answer == SECOND
        if goes_on:
            chosen = {"role": "assistant", "content": answer}
            await read(client, [TASK, chosen, MORE], stream=True)

    decision = decision_on(await outcome_of([broken, Reply(SECOND), Reply(LAST)], agent))
    assert trained(decision) == [ids(SECOND, LAST) if goes_on else ids(SECOND)]


async def test_an_answer_that_the_agent_left_is_not_trained_if_it_asks_again():
    """The agent's timeout ends the first call; the SDK repeats it."""

    async def agent(client: AsyncOpenAI) -> None:
        impatient = client.with_options(timeout=1.0, max_retries=2)
        (answer,) = await read(impatient, [TASK])
        assert answer == SECOND

    slow = Reply(FIRST, delay=30)
    decision = decision_on(await outcome_of([slow, Reply(SECOND)], agent))
    assert trained(decision) == [ids(SECOND)]


async def test_half_of_a_stream_that_the_agent_left_is_trained_only_if_it_did_not_ask_again():
    async def leave(client: AsyncOpenAI) -> None:
        messages: Any = [TASK]
        stream: Any = await client.chat.completions.create(
            model="m", messages=messages, stream=True
        )
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 4:
                break
        await stream.close()

    async def leave_and_ask(client: AsyncOpenAI) -> None:
        await leave(client)
        await read(client, [TASK])

    async def leave_and_go_on(client: AsyncOpenAI) -> None:
        await leave(client)
        await read(client, [MORE])

    slow = Reply(FIRST, chunk_delay=0.2)
    asked = decision_on(await outcome_of([slow, Reply(SECOND)], leave_and_ask))
    assert trained(asked) == [ids(SECOND)]
    (part, other) = trained(decision_on(await outcome_of([slow, Reply(LAST)], leave_and_go_on)))
    assert other == ids(LAST)
    assert part == ids(FIRST)[: len(part)]
    assert 0 < len(part) < len(ids(FIRST))
