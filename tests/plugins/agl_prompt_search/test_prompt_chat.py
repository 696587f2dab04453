"""What the endpoint of a reflection model may answer: only a whole text becomes a prompt."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agl_prompt_search.chat import ChatReply, ask_model


async def ask_by(create: Any, **options: Any) -> ChatReply:
    completions = SimpleNamespace(create=create)
    client: Any = SimpleNamespace(chat=SimpleNamespace(completions=completions))
    return await ask_model(client, "m", [{"role": "user", "content": "Edit."}], **options)


async def ask(content: Any, reason: Any = "stop", **message: Any) -> ChatReply:
    async def create(**_: Any) -> Any:
        answer = SimpleNamespace(content=content, **message)
        choice = SimpleNamespace(message=answer, finish_reason=reason)
        return SimpleNamespace(choices=[choice], usage=None)

    return await ask_by(create)


@pytest.mark.parametrize(
    "reason",
    ["length", "LENGTH", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"],
)
async def test_a_text_that_ends_at_a_limit_is_cut_off(reason: str):
    """OpenAI, Anthropic and Gemini behind adapters, Mistral, and the Responses API."""
    assert (await ask("Answer {q", reason)).cut_off


@pytest.mark.parametrize("reason", ["stop", "end_turn", "eos", "stop_sequence", None])
async def test_a_text_that_ended_is_whole(reason: str | None):
    reply = await ask(" Answer {q} ", reason)
    assert (reply.text, reply.problem, reply.cut_off) == ("Answer {q}", "", False)


@pytest.mark.parametrize(
    "reason",
    ["content_filter", "SAFETY", "recitation", "refusal", "error", "abort", "tool_calls"],
)
async def test_what_was_stopped_is_no_answer(reason: str):
    reply = await ask("I will look", reason)
    assert reply.text == ""
    assert reply.problem == f"the answer was stopped: {reason.lower()}"


async def test_parts_of_text_are_a_text_and_thoughts_are_not():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    for kind in (dict, SimpleNamespace):
        parts = [kind(**thought), kind(type="text", text="Answer "), kind(type="text", text="{q}")]
        assert (await ask(parts)).text == "Answer {q}"
    assert (await ask([thought])).problem == "the answer is empty"


@pytest.mark.parametrize("content", [None, "", " \n"])
async def test_no_text_is_a_problem(content: Any):
    assert (await ask(content)).problem == "the answer is empty"
    assert "limit of tokens" in (await ask(content, "length")).problem
    assert (await ask(3)).problem == "the answer is a int, not a text"


async def test_a_model_that_declines_is_quoted():
    """OpenAI sends the refusal beside an empty content, and says that the answer ended."""
    reply = await ask(None, refusal="I cannot help\nwith that.")
    assert reply.problem == "the model declined: I cannot help with that."
    assert not reply.refused  # another answer to the same request may be one
    for nothing in (None, ""):
        assert (await ask("Answer {q}", refusal=nothing)).text == "Answer {q}"


async def test_a_connection_that_the_system_gave_up_is_not_a_slow_answer():
    async def lost(**_: Any) -> Any:
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    reply = await ask_by(lost)
    assert reply.problem == f"TimeoutError: [Errno {errno.ETIMEDOUT}] Connection timed out"


async def test_an_answer_that_does_not_come_in_time_is_a_problem():
    async def slow(**_: Any) -> Any:
        await anyio.sleep_forever()

    assert (await ask_by(slow, timeout=0.01)).problem == "no answer within 0.01 s"
