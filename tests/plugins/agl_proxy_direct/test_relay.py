"""Stream relay: events that are sent at once, held or stripped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agl_core.genai import (
    DONE,
    MALFORMED,
    NO_EXTRA_FIELDS,
    ExtraFields,
    Protocol,
    event_bytes,
    named_event,
)
from agl_proxy_direct.relay import StreamRelay


def chunk(text: str = "", finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish, **more}
    return {"id": "r", "choices": [choice]}


def relay(
    source: Protocol = "chat",
    target: Protocol = "chat",
    extra: ExtraFields = NO_EXTRA_FIELDS,
    **request: Any,
) -> StreamRelay:
    return StreamRelay(source, target, extra, request)


def test_bytes_pass_unchanged_and_the_final_event_is_held():
    stream = relay()
    odd = b': ping\n\ndata:   {"choices": [], "x": 1e-7}\n\n'
    assert stream.feed(odd) == odd
    first = event_bytes(chunk("a"))
    assert stream.feed(first[:9]) == b""
    assert stream.feed(first[9:]) == first
    last = event_bytes(chunk("b", "stop")) + event_bytes({"choices": [], "usage": {}}) + DONE
    assert stream.feed(last) == b""
    assert stream.complete
    assert stream.close() == last


def test_with_several_choices_the_final_events_of_all_are_held():
    stream = relay(n=2)
    one, two = event_bytes(chunk("a", "stop")), event_bytes(chunk("b", "stop", index=1))
    assert stream.feed(one) == one
    assert not stream.complete
    assert stream.feed(two) == b""
    assert stream.close() == two


@pytest.mark.parametrize(
    ("protocol", "events"),
    [
        (
            "messages",
            [
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
                {"type": "message_stop"},
            ],
        ),
        ("responses", [{"type": "response.completed", "response": {"status": "completed"}}]),
    ],
)
def test_the_end_is_held_in_every_protocol(protocol: Protocol, events: list[Any]):
    stream = relay(protocol, protocol)
    start = named_event({"type": "ping"})
    assert stream.feed(start) == start
    end = b"".join(map(named_event, events))
    assert stream.feed(end) == b""
    assert stream.complete
    assert stream.close() == end


def test_a_translated_end_is_held_too():
    stream = relay("chat", "messages")
    assert b"content_block_delta" in stream.feed(event_bytes(chunk("a")))
    assert stream.feed(event_bytes(chunk("", "stop")) + DONE) == b""
    held = stream.close()
    assert b"message_delta" in held and held.rstrip().endswith(b'{"type":"message_stop"}')


def test_fields_that_were_not_requested_are_recorded_and_removed():
    stream = relay(extra=ExtraFields(token_ids=True, logprobs=True, usage=True))
    logprobs = {"content": [{"token": "a", "logprob": -1.0}]}
    got = stream.feed(
        event_bytes({**chunk("a", token_ids=[7], logprobs=logprobs), "prompt_token_ids": [1, 2]})
    )
    assert json.loads(got[6:]) == chunk("a", logprobs=None)
    stream.feed(event_bytes(chunk("", "stop")))
    stream.feed(event_bytes({"choices": [], "usage": {"prompt_tokens": 2}}) + DONE)
    assert b"usage" not in stream.close()
    whole = stream.assembler.result()
    assert whole["prompt_token_ids"] == [1, 2]
    assert whole["choices"][0]["token_ids"] == [7]
    assert whole["choices"][0]["logprobs"] == logprobs
    assert whole["usage"] == {"prompt_tokens": 2}


def test_an_event_without_its_end_gets_none_when_fields_are_removed():
    stream = relay(extra=ExtraFields(token_ids=True))
    sent = event_bytes(chunk("a", token_ids=[7])) + event_bytes(chunk("b", token_ids=[8]))
    assert stream.feed(sent.removesuffix(b"\n\n")) == event_bytes(chunk("a"))
    stream.end()
    assert stream.close() == event_bytes(chunk("b")).removesuffix(b"\n\n")


def test_what_comes_after_the_end_stays_behind_it():
    stream = relay()
    error = event_bytes({"error": {"message": "no room"}})
    sent = event_bytes(chunk("a")) + DONE + error
    assert stream.feed(sent) == event_bytes(chunk("a"))
    stream.end()
    assert stream.close() == DONE + error


@pytest.mark.parametrize("data", [b"data: {nope\n\n", b"data: [1]\n\n"])
def test_garbage_goes_to_the_agent_and_is_named(data: bytes):
    stream = relay()
    assert stream.feed(data) == data
    assert len(stream.not_understood) == 1
    assert stream.events == 0


def test_a_stream_without_an_end_is_not_complete():
    stream = relay()
    stream.feed(event_bytes(chunk("a")))
    assert not stream.complete


def completion(text: str, index: int, finish: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": finish}
    return event_bytes({"id": "r", "choices": [choice]})


def test_each_prompt_of_a_completion_has_choices_of_its_own():
    stream = relay("completions", "completions", prompt=["a", "b"])
    first, second = completion("a", 0, "stop"), completion("b", 1)
    assert stream.feed(first) == first
    assert stream.feed(second) == second, "the second choice goes on"
    stream.end()
    assert not stream.complete, "a backend that disconnects now has not finished"
    assert stream.feed(completion("", 1, "stop")) == b""
    assert stream.complete


@pytest.mark.parametrize("target", ["messages", "chat"])
@pytest.mark.parametrize(
    "event",
    [
        b"data: {nope\n\n",
        named_event({"type": "response.output_text.delta", "delta": "b", "item_id": ["odd"]}),
    ],
)
def test_a_translated_stream_that_would_lack_content_fails(target: Protocol, event: bytes):
    stream = relay("responses", target)
    assert b"a" in stream.feed(named_event({"type": "response.output_text.delta", "delta": "a"}))
    with pytest.raises(MALFORMED):
        stream.feed(event)
    assert len(stream.not_understood) == 1


def test_an_event_without_content_may_have_no_translation():
    stream = relay("messages", "chat")
    assert stream.feed(named_event({"type": "message_start", "message": {"usage": 7}})) is not None
    assert stream.feed(b"data: 7\n\n") == b""


def test_a_cut_event_is_the_end_of_a_stream_that_is_not_complete():
    stream = relay("chat", "messages")
    stream.feed(event_bytes(chunk("a")) + b'data: {"choi')
    stream.end()
    assert not stream.complete


@pytest.mark.parametrize(
    "error",
    [
        {"type": "error", "error": {"type": "overloaded_error", "message": "no room"}},
        {"type": "error", "message": "no room"},
    ],
)
def test_no_end_follows_an_error_in_a_translated_stream(error: dict[str, Any]):
    stream = relay("messages" if "error" in error else "responses", "chat")
    out = stream.feed(named_event(error))
    stream.end()
    assert b"no room" in out and stream.complete
    assert stream.close() == b""


def test_the_number_of_the_next_event_is_known():
    stream = relay("responses", "responses")
    stream.feed(named_event({"type": "response.created", "sequence_number": 4}))
    assert stream.next_number == 5
    stream.feed(named_event({"type": "response.output_text.delta", "sequence_number": "odd"}))
    assert stream.next_number == 5
    end = {"type": "response.completed", "response": {"status": "completed"}}
    stream.feed(named_event({**end, "sequence_number": 6}))
    assert stream.next_number == 5, "the end is held"
