"""The record of a client's stream, regardless of what the agent does with its events."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from agl_scripted import Reply, ScriptedModels, ToolCall
from agl_tracer_weave.streams import RecordedManager, StreamRecord

HI: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with ScriptedModels([Reply("Hello there.")], always={"return_token_ids": True}) as models:
        yield models


@pytest.fixture
def client(models: ScriptedModels) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=models.base_url, api_key="none") as client:
        yield client


def test_the_text_is_kept_and_no_event_is_copied(client):
    stream = client.chat.completions.create(model="m", messages=HI, stream=True)
    record = StreamRecord(stream, "chat")
    for event in stream:
        for choice in event.choices:
            choice.delta.content = "Changed"
        record.passed(event)
    assert not record.may_call_tools()
    (choice,) = record.response()["choices"]
    assert choice["message"]["content"] == "Hello there."
    assert choice["token_ids"] == [token.id for token in Reply("Hello there.").tokens]


async def test_asynchronous_streams_are_recorded_in_the_same_way(models):
    async with openai.AsyncOpenAI(base_url=models.base_url, api_key="none") as client:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        record = StreamRecord(stream, "chat")
        async for event in stream:
            record.passed(event)
    assert record.response()["choices"][0]["message"]["content"] == "Hello there."


def test_tool_calls_are_detected(models, client):
    models.script = [Reply(tool_calls=[ToolCall("look", {"at": "it"})])]
    stream = client.chat.completions.create(model="m", messages=HI, stream=True)
    record = StreamRecord(stream, "chat")
    for event in stream:
        record.passed(event)
    assert record.may_call_tools()
    (call,) = record.response()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look"


def test_two_records_of_one_stream_do_not_disturb_each_other(client):
    stream = client.chat.completions.create(model="m", messages=HI, stream=True)
    records = [StreamRecord(stream, "chat") for _ in range(2)]
    for event in stream:
        for record in records:
            record.passed(event)
    first, second = (record.response() for record in records)
    assert first == second and first["choices"][0]["message"]["content"] == "Hello there."


def test_the_read_part_of_an_abandoned_stream_is_recorded(models, client):
    models.script = [Reply("a b c d")]
    stream = client.chat.completions.create(model="m", messages=HI, stream=True)
    record = StreamRecord(stream, "chat")
    for _ in range(3):
        record.passed(next(stream))
    stream.close()
    assert record.response()["choices"][0]["message"]["content"] == "a b"


CHUNKS = [{"id": "1", "choices": [{"delta": {"content": text}}]} for text in ("a", "b", "c")]


@pytest.mark.parametrize(
    "decoder", [None, object(), SimpleNamespace(iter_bytes=None)], ids=["none", "other", "unused"]
)
def test_events_of_other_clients_are_copied_as_they_pass(decoder):
    class Stream:
        _decoder = decoder

        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield from json.loads(json.dumps(CHUNKS))

    stream = Stream()
    record = StreamRecord(stream, "chat")
    for event in stream:
        record.passed(event)
        event["choices"][0]["delta"]["content"] = "Changed"
    assert record.may_call_tools()  # the content was not parsed
    assert record.response()["choices"][0]["message"]["content"] == "abc"


def test_an_event_that_cannot_be_copied_is_logged_and_left_out(caplog):
    class Odd(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("odd")

    record = StreamRecord(iter(()), "chat")
    for event in (CHUNKS[0], Odd(), CHUNKS[2]):
        record.passed(event)
    assert "could not be recorded" in caplog.text
    assert record.response()["choices"][0]["message"]["content"] == "ac"


class Decoder:
    """Turns lines into events, as the clients' decoders do."""

    def iter_bytes(self, iterator: Iterator[bytes]) -> Iterator[Any]:
        for line in iterator:
            yield SimpleNamespace(data=line.decode())


def test_an_event_that_the_client_cannot_parse_ends_the_record(caplog):
    caplog.set_level(logging.DEBUG)
    stream = SimpleNamespace(_decoder=Decoder())
    record = StreamRecord(stream, "chat")
    lines = [json.dumps(chunk).encode() for chunk in CHUNKS]
    lines[2:2] = [b"", b"[1]", b'{"id"']
    for event in stream._decoder.iter_bytes(iter([*lines, b"[DONE]"])):
        record.passed(event)
    assert record.response()["choices"][0]["message"]["content"] == "ab"
    assert "invalid event" in caplog.text


class Manager:
    """Opens a stream, as Anthropic's helper does."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.closed = False
        self.size = 3

    def __enter__(self) -> Any:
        if self.error is not None:
            raise self.error
        self.stream = SimpleNamespace(_raw_stream=SimpleNamespace(_decoder=Decoder()))
        return self.stream

    def __exit__(self, *error: object) -> None:
        self.closed = True

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)


def read_some(stream: Any) -> None:
    lines = [json.dumps(chunk).encode() for chunk in CHUNKS]
    assert len(list(stream._raw_stream._decoder.iter_bytes(iter(lines)))) == 3


def content_of(record: StreamRecord | None) -> str:
    assert record is not None
    return record.response()["choices"][0]["message"]["content"]


async def test_a_manager_reports_the_record_when_the_agent_is_done():
    told: list[tuple[StreamRecord | None, BaseException | None]] = []
    managers = [Manager(), Manager()]
    first, second = (RecordedManager(m, "chat", lambda *what: told.append(what)) for m in managers)
    assert first.size == 3
    with first as stream:
        read_some(stream)
        assert told == []
    async with second as stream:
        read_some(stream)
    assert [content_of(record) for record, _ in told] == ["abc", "abc"]
    assert [error for _, error in told] == [None, None]
    assert [manager.closed for manager in managers] == [True, True]


def test_a_manager_that_the_agent_drops_is_reported():
    told: list[Any] = []
    manager = RecordedManager(Manager(), "chat", lambda *what: told.append(what))
    del manager
    assert told == [(None, None)]


async def test_a_manager_reports_errors_of_the_client_and_of_the_agent():
    told: list[tuple[StreamRecord | None, BaseException | None]] = []
    refused, wrong = ConnectionError("refused"), RuntimeError("the agent's")

    def note(*what: Any) -> None:
        told.append(what)

    with pytest.raises(ConnectionError), RecordedManager(Manager(refused), "chat", note):
        raise AssertionError("it is not entered")
    with pytest.raises(ConnectionError):
        async with RecordedManager(Manager(refused), "chat", note):
            raise AssertionError("it is not entered")

    def fail() -> None:
        with RecordedManager(Manager(), "chat", note) as stream:
            read_some(stream)
            raise wrong

    with pytest.raises(RuntimeError):
        fail()
    assert told[:2] == [(None, refused), (None, refused)]
    assert (content_of(told[2][0]), told[2][1]) == ("abc", wrong)
