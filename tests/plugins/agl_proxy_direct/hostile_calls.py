"""Requests of agents and answers of backends that no protocol allows, for tests of the proxy."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from .raw_backend import http_response

__all__ = ["ANSWERS", "HI", "KEY", "REQUESTS", "huge_answers", "huge_requests"]

KEY = "sk-operator-0123456789/abcdef"
"""The backend's key."""
HI = [{"role": "user", "content": "hi"}]


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "q", "messages": HI, **more}).encode()


def raw(fields: str) -> bytes:
    return b'{"model":"q","messages":[{"role":"user","content":"hi"}],' + fields.encode() + b"}"


REQUESTS: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"{oops",
    "an array": b"[]",
    "a number": b"5",
    "not UTF-8": b'{"model":"q","messages":"\xff"}',
    "UTF-16": chat().decode().encode("utf-16"),
    "NaN": raw('"temperature":NaN'),
    "Infinity": raw('"temperature":-Infinity'),
    "1e999": raw('"temperature":1e999'),
    "an integer of 400 digits": raw('"seed":' + "9" * 400),
    "an integer of 5,000 digits": raw('"seed":' + "9" * 5000),
    "arrays 100,000 deep": raw('"x":' + "[" * 100_000 + "]" * 100_000),
    "arrays 300 deep": raw('"x":' + "[" * 300 + "]" * 300),
    "arrays 300 deep, a lone surrogate": raw('"y":"\\ud800","x":' + "[" * 300 + "]" * 300),
    "arrays 900 deep, a lone surrogate": raw('"y":"\\ud800","x":' + "[" * 900 + "]" * 900),
    "a lone surrogate": chat(user="\ud800"),
    "a lone surrogate in a key": chat(**{"\udfff": 1}),
    "NUL": chat(user="\0"),
    "messages: 5": chat(messages=5),
    "messages: [5]": chat(messages=[5]),
    "messages: [[]]": chat(messages=[[]]),
    "messages: object": chat(messages={"a": 1}),
    "messages: null": chat(messages=None),
    "content: 5": chat(messages=[{"role": "user", "content": 5}]),
    "content: [5]": chat(messages=[{"role": "user", "content": [5, None, []]}]),
    "role: object": chat(messages=[{"role": {}, "content": "x"}]),
    "tool_calls: 5": chat(messages=[{"role": "assistant", "tool_calls": 5}]),
    "tool_calls: [5]": chat(messages=[{"role": "assistant", "tool_calls": [5]}]),
    "function: 5": chat(messages=[{"role": "assistant", "tool_calls": [{"function": 5}]}]),
    "image_url: 5": chat(
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}]
    ),
    "tools: 5": chat(tools=5),
    "tools: [5]": chat(tools=[5]),
    "tool_choice: [5]": chat(tool_choice=[5]),
    "input: 5": chat(input=5),
    "input: [5]": chat(input=[5]),
    "prompt: object": chat(prompt={"a": 1}),
    "system: 5": chat(system=5),
    "stop: object": chat(stop={"a": 1}),
    "n: list": chat(n=[1]),
    "n: -1": chat(n=-1),
    "n: 2^63": chat(n=2**63),
    "stream: text": chat(stream="yes"),
    "stream_options: 5": chat(stream=True, stream_options=5),
    "stream_options: list": chat(stream=True, stream_options=[1]),
    "response_format: 5": chat(response_format=5),
    "response_format without a schema": chat(response_format={"type": "json_schema"}),
    "model: 5": chat(model=5),
    "model: 100 kB": chat(model="m" * 100_000),
    "logprobs: object": chat(logprobs={"a": 1}),
    "metadata: 5": chat(metadata=5),
    "10,000 unknown keys": chat(**{f"k{i}": i for i in range(10_000)}),
}


@cache
def huge_requests() -> dict[str, bytes]:
    """Return requests of megabytes, made at the first call: they take a second."""
    return {
        "20 MB of text": chat(messages=[{"role": "user", "content": "x" * 20_000_000}]),
        "200,000 unknown keys": chat(**{f"k{i}": i for i in range(200_000)}),
        "2 MB of [[],[],…]": chat(messages=[[]] * 700_000),
        "2 MB of {}": chat(messages=[{}] * 700_000),
        "60 MB of [[],[],…]": chat(x=0)[:-1] + b',"y":[' + b"[]," * 20_000_000 + b"0]}",
        "10 MB of numbers": chat(x=0)[:-1] + b',"y":[' + b"0," * 5_000_000 + b"0]}",
    }


def answered(**more: Any) -> bytes:
    message = {"role": "assistant", "content": "x"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return http_response(json.dumps({"id": "a", "choices": [choice], **more}).encode())


def events(*values: Any, done: bool = True) -> bytes:
    lines = [b"data: " + (v if isinstance(v, bytes) else json.dumps(v).encode()) for v in values]
    return http_response(
        b"\n\n".join([*lines, b"data: [DONE]" if done else b": ping", b""]), "text/event-stream"
    )


def delta(**more: Any) -> dict[str, Any]:
    return {"id": "a", "choices": [{"index": 0, "delta": {"content": "x"}, **more}]}


def choice(**more: Any) -> bytes:
    return answered(choices=[{"index": 0, **more}])


def failed(status: str, body: bytes = b'{"error":{"message":"no"}}', **headers: str) -> bytes:
    return http_response(body, status=status, **headers)


Answer = bytes | Callable[[asyncio.StreamWriter], object]
ANSWERS: dict[str, Answer] = {
    "no bytes": b"",
    "not HTTP": b"hello\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "half a body": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b'content-length: 999\r\n\r\n{"id":',
    "a bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "bad gzip": http_response(b"not gzip", content_encoding="gzip"),
    "gzip": http_response(gzip.compress(b'{"choices":[]}'), content_encoding="gzip"),
    "an odd content type": http_response(b"{}", kind=";;;=\x7f"),
    "HTML": http_response(b"<html>", kind="text/html"),
    "an empty body": http_response(b""),
    "an array ": http_response(b"[]"),
    "null": http_response(b"null"),
    "an empty object": http_response(b"{}"),
    "arrays 100,000 deep ": http_response(b"[" * 100_000),
    "NaN ": answered(usage={"prompt_tokens": float("nan")}),
    "usage of 10^400": answered(usage={"total_tokens": 10**400, "prompt_tokens": 10**400}),
    "usage: text": answered(usage="lots"),
    "usage of texts": answered(usage={"total_tokens": "5", "prompt_tokens": {}}),
    "usage of lists": answered(usage={"prompt_tokens": [1], "prompt_tokens_details": 5}),
    "choices: 5": answered(choices=5),
    "choices: [5]": answered(choices=[5]),
    "choices: text": answered(choices="abc"),
    "choices: null": answered(choices=None),
    "message: 5": choice(message=5),
    "message: list": choice(message=[1]),
    "content: object": choice(message={"content": {"a": 1}}),
    "tool_calls: [5] ": choice(message={"tool_calls": [5]}),
    "logprobs: 5": choice(message={}, logprobs=5),
    "logprobs.content: [5]": choice(message={}, logprobs={"content": [5]}),
    "token_ids: text": choice(message={}, token_ids="abc"),
    "token_ids of types": choice(message={}, token_ids=[1, "a", None, 2.5]),
    "token_ids of 2^70": choice(message={}, token_ids=[2**70]),
    "prompt_token_ids: object": answered(prompt_token_ids={"a": 1}),
    "id: object": answered(id={"a": [1]}),
    "a lone surrogate ": answered(model="\ud800"),
    "a message ": http_response(json.dumps({"type": "message", "content": 5}).encode()),
    "a stream of nothing": events(done=False),
    "a stream of [DONE]": events(),
    "an event that is not JSON": events(b"{oops"),
    "an event: 5": events(5),
    "an event, arrays 100,000 deep": events(b"[" * 100_000),
    "choices: 5 in an event": events({"choices": 5}),
    "delta: 5": events({"choices": [{"delta": 5}]}),
    "delta.tool_calls: 5": events({"choices": [{"delta": {"tool_calls": 5}}]}),
    "delta.content of types": events(delta(), {"choices": [{"delta": {"content": [1]}}]}),
    "index: list": events({"choices": [{"index": [], "delta": {}}]}),
    "indexes of types": events(
        {"choices": [{"index": 0, "delta": {}}, {"index": "a", "delta": {}}]}
    ),
    "usage: 5 in an event": events(delta(), {"choices": [], "usage": 5}),
    "token_ids: 5 in an event": events(delta(token_ids=5)),
    "logprobs: 5 in an event": events(delta(logprobs=5)),
    "NaN in an event": events(delta(), b'{"choices":[],"usage":{"prompt_tokens":NaN}}'),
    "an error event: 5": events({"error": 5}),
    "a message's event without an index": events({"type": "content_block_delta"}),
    "a cut stream": events(delta(), done=False),
    "status 100 only": b"HTTP/1.1 100 Continue\r\n\r\n",
    "status 204": failed("204 No Content", b""),
    "status 302": failed("302 Found", b"", location="http://127.0.0.1:1/"),
    "status 304": failed("304 Not Modified", b""),
    "status 999": failed("999 Odd"),
    "status 000": failed("000 Odd"),
    "an error that is not JSON": failed("400 Bad", b"\xff\xfe"),
    "an error: 5": failed("400 Bad", b'{"error":5}'),
    "an error that repeats the key": failed(
        "401 Unauthorized",
        json.dumps(
            {"error": {"message": f"Incorrect API key provided: {KEY}.", "k": KEY}}
        ).encode(),
        x_echo=f"Bearer {KEY}",
        set_cookie=f"session={KEY}",
    ),
    "an answer that repeats the key": choice(message={"content": f"key {KEY}"}),
    "a stream that repeats the key": events(delta(echo=KEY)),
    "an error event that repeats the key": events({"error": {"message": f"bad key {KEY}"}}),
    "broken JSON that repeats the key": http_response(f"<p>{KEY}".encode()),
    "a header with the key and no body": failed("200 OK", b"", authorization=KEY),
}


async def _endless(writer: asyncio.StreamWriter, head: bytes, piece: bytes, size: int) -> None:
    writer.write(head)
    for _ in range(size // len(piece)):
        writer.write(piece)
        await writer.drain()


def endless(kind: str, start: bytes, piece: bytes, size: int) -> Answer:
    head = http_response(start, kind)
    return lambda writer: _endless(writer, head, piece, size)


@cache
def huge_answers() -> dict[str, Answer]:
    """Return answers of megabytes, made at the first call: they take a second."""
    return {
        "400 MB without an end": endless("application/json", b"{", b" " * 2**20, 400 * 2**20),
        "an event of 100 MB": endless("text/event-stream", b"data: ", b"x" * 2**16, 100 * 2**20),
        "an event of 4 MB in pieces of 512 B": endless(
            "text/event-stream", b"data: ", b"x" * 512, 4 * 2**20
        ),
        "gzip of 400 MB": http_response(
            gzip.compress(b" " * (400 * 2**20), 1), content_encoding="gzip"
        ),
        "50,000 choices": answered(choices=[{"message": {"content": "x"}}] * 50_000),
        "2 MB of [[],[],…] ": choice(message={"content": [[]] * 700_000}),
        "an error of 20 MB": failed("500 Oops", b"x" * 20_000_000),
    }
