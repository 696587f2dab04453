"""Server-sent events and JSON, regardless of the chunks in which they arrive."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, strategies as st

from agl_core.genai import SseSplitter, dumps, event_bytes, loads, named_event, parse_path

payloads = st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=2))


@given(payloads, st.data(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_survive_any_cut(values: list[dict[str, str]], data: st.DataObject, end: bytes):
    stream = b": ping\n\n" + b"".join(
        named_event({"type": "t", **value}) if n % 2 else event_bytes(value)
        for n, value in enumerate(values)
    )
    stream = stream.replace(b"\n", end)
    splitter = SseSplitter()
    events = []
    while stream:
        size = data.draw(st.integers(1, 12))
        events += splitter.feed(stream[:size])
        stream = stream[size:]
    events += splitter.feed(b"\n") if end == b"\r" else []  # a lone CR may be half of a pair
    got = [json.loads(event.data) for event in events if event.data]
    assert got == [{"type": "t", **v} if n % 2 else v for n, v in enumerate(values)]
    assert [e.name for e in events if e.data] == ["t" if n % 2 else "" for n in range(len(values))]
    assert events[0].data == b""


def test_data_lines_are_joined_and_the_rest_is_returned():
    splitter = SseSplitter()
    (event,) = splitter.feed(b"event: x\nid: 1\ndata: {\ndata: }\n\ndata: re")
    assert (event.name, event.data) == ("x", b"{\n}")
    assert splitter.close() == b"data: re"


def test_an_endless_event_is_an_error():
    splitter = SseSplitter(limit=10)
    with pytest.raises(ValueError, match="10 bytes"):
        splitter.feed(b"data: " + b"x" * 20)


def test_an_event_of_many_chunks_is_searched_once():
    splitter = SseSplitter()
    before = time.process_time()
    for _ in range(2**17):  # 8 MB; searching all of it for each chunk took minutes
        assert splitter.feed(b"x" * 64) == []
    assert time.process_time() - before < 5
    (event,) = splitter.feed(b"\n\n")
    assert len(event.raw) == 2**23 + 2


@pytest.mark.parametrize("start", [b"", b'"\\ud800",'])
@pytest.mark.parametrize("depth", [400, 100_000])
def test_json_nested_too_deeply_is_not_valid(start: bytes, depth: int):
    with pytest.raises(ValueError, match=r"deep|recursion"):
        loads(b"[" + start + b"[" * depth + b"]" * depth + b"]")


def test_json_in_another_encoding_is_not_valid():
    with pytest.raises(ValueError):
        loads('{"a": NaN}'.encode("utf-16"))


def test_json_that_the_fast_parser_rejects():
    lone = '"\\ud83d"'
    assert loads(lone.encode()) == "\ud83d"
    assert loads(dumps({"a": "\ud83d"})) == {"a": "\ud83d"}
    assert loads(dumps({"n": 2**80, "f": 0.1})) == {"n": 2**80, "f": 0.1}
    with pytest.raises(ValueError):
        loads(b"{")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", ("/chat/completions", "chat", None, None)),
        ("/chat/completions/", ("/chat/completions", "chat", None, None)),
        ("/rollout/r/attempt/a/v1/messages", ("/messages", "messages", "r", "a")),
        ("/rollout/r/attempt/a/responses", ("/responses", "responses", "r", "a")),
        ("/v1/rollout/r/attempt/a/embeddings", ("/embeddings", "embeddings", "r", "a")),
        ("/rollout/r/attempt/a", ("/", None, "r", "a")),
        ("/v1/audio/speech", ("/audio/speech", None, None, None)),
        ("/v1", ("/", None, None, None)),
        ("/rollout/r/attempt/a/v1/v1/messages", ("/messages", "messages", "r", "a")),
        ("/v1/v1/chat/completions", ("/chat/completions", "chat", None, None)),
        ("/v1beta/models", ("/v1beta/models", None, None, None)),
        ("/audio/v1/speech", ("/audio/v1/speech", None, None, None)),
    ],
)
def test_paths(path: str, expected: tuple[str, str | None, str | None, str | None]):
    assert tuple(parse_path(path)) == (*expected, None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/openai/deployments/gpt/chat/completions", ("/chat/completions", "chat", "gpt")),
        ("/v1/openai/deployments/gpt/completions", ("/completions", "completions", "gpt")),
        ("/openai/v1/chat/completions", ("/chat/completions", "chat", None)),
        ("/openai/v1/responses", ("/responses", "responses", None)),
        ("/openai/responses", ("/responses", "responses", None)),
        ("/openai/deployments/gpt", ("/openai/deployments/gpt", None, None)),
        (
            "/openai/deployments/gpt/audio/speech",
            ("/openai/deployments/gpt/audio/speech",) + (None,) * 2,
        ),
    ],
)
def test_paths_of_azure_name_the_model(path: str, expected: tuple[str | None, ...]):
    found = parse_path(path)
    assert (found.endpoint, found.protocol, found.model) == expected
    routed = parse_path(f"/rollout/r/attempt/a{path}")
    assert routed == found._replace(rollout_id="r", attempt_id="a")
