"""Bodies of answers whose form is not the one that was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .raw_backend import RawBackend, http_response

PATHS = ("/chat/completions", "/messages", "/responses")
VLLM = "hosted_vllm/Q"
PLAIN = {"/chat/completions": "other/Q"}
"""Backends of calls that are compared byte by byte: nothing is requested besides."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MESSAGE = {"role": "assistant", "content": "hello"}
WHOLE = {"id": "c", "model": "m", "choices": [{"index": 0, "message": MESSAGE}]}
WHOLE["choices"][0]["finish_reason"] = "stop"  # type: ignore[index]


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "model": "m", "choices": [choice]}


def stream(*values: Any, end: bytes = b"\n\n") -> bytes:
    lines = [b"data: " + json.dumps(value).encode() for value in values]
    return b"\n\n".join(lines) + end


EVENTS = stream(chunk(content="hel"), chunk(content="lo"), chunk("stop")) + b"data: [DONE]\n\n"


def said_in(path: str, body: bytes) -> str:
    """Return the text of a stream or a whole answer in the protocol of a path."""
    values = [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data: {")]
    if not values:
        answer = json.loads(body)
        if path == "/messages":
            return answer["content"][0]["text"]
        return answer["output"][0]["content"][0]["text"]
    if path == "/messages":
        assert values[-1]["type"] == "message_stop"
        return "".join(value.get("delta", {}).get("text", "") for value in values)
    assert values[-1]["type"] == "response.completed"
    return values[-1]["response"]["output"][0]["content"][0]["text"]


async def check_span(spans: Any) -> None:
    (span,) = await spans()
    assert span.status.status_code == "OK", span.status.description
    (said,) = json.loads(span.attributes["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "text", "content": "hello"}]
    assert said["finish_reason"] == "stop"


@pytest.mark.parametrize("kind", ["text/plain; charset=utf-8", "application/json"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_under_another_content_type(
    ask: Any, raw: RawBackend, spans: Any, path: str, kind: str
):
    raw.answer = http_response(b": hi\n\n" + EVENTS, kind)
    status, body = await ask(path, PLAIN.get(path, VLLM), stream=True)
    assert status == 200
    if path == "/chat/completions":
        assert body.startswith(b": hi\n\ndata: ") and body.endswith(b"data: [DONE]\n\n")
    else:
        assert said_in(path, body) == "hello"
    await check_span(spans)


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_answer_to_a_call_for_a_stream(
    ask: Any, raw: RawBackend, spans: Any, path: str
):
    raw.answer = http_response(json.dumps(WHOLE).encode())
    status, body = await ask(path, stream=True)
    assert status == 200
    if path == "/chat/completions":
        assert json.loads(body) == WHOLE
    else:
        assert said_in(path, body) == "hello"
    await check_span(spans)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_to_a_call_for_a_whole_answer(
    ask: Any, raw: RawBackend, spans: Any, path: str, kind: str
):
    raw.answer = http_response(EVENTS, kind)
    status, body = await ask(path)
    assert status == 200
    if path == "/chat/completions":
        assert body.startswith(b"data: ") and body.endswith(b"data: [DONE]\n\n")
    else:
        assert said_in(path, body) == "hello"
    await check_span(spans)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_last_event_without_a_blank_line(
    ask: Any, raw: RawBackend, spans: Any, path: str, end: bytes
):
    body = stream(chunk(content="hello"), chunk("stop"), end=end)
    raw.answer = http_response(body, "text/event-stream")
    status, got = await ask(path, PLAIN.get(path, VLLM), stream=True)
    assert status == 200
    if path == "/chat/completions":
        assert got.splitlines() == body.splitlines()
    else:
        assert said_in(path, got) == "hello"
    await check_span(spans)


@pytest.mark.parametrize("path", PATHS)
async def test_done_without_a_finish_reason_and_a_blank_line(ask: Any, raw: RawBackend, path: str):
    body = stream(chunk(content="hello")) + b"data: [DONE]"
    raw.answer = http_response(body, "text/event-stream")
    status, got = await ask(path, PLAIN.get(path, VLLM), stream=True)
    assert status == 200
    if path == "/chat/completions":
        assert got == body
    else:
        assert said_in(path, got) == "hello"
        assert b"[DONE]" not in got


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", PATHS)
async def test_a_byte_order_mark(ask: Any, raw: RawBackend, spans: Any, path: str, streamed: bool):
    answer = EVENTS if streamed else json.dumps(WHOLE).encode()
    kind = "text/event-stream" if streamed else "application/json"
    raw.answer = http_response(BYTE_ORDER_MARK + answer, kind)
    status, body = await ask(path, stream=streamed)
    assert status == 200
    if path != "/chat/completions":
        assert said_in(path, body) == "hello"
    await check_span(spans)


FAILED: dict[str, tuple[dict[str, Any], int, str]] = {
    "vLLM's older form": ({"object": "error", "message": "too long", "code": 400}, 400, "too long"),
    "MiniMax": (
        {"choices": None, "base_resp": {"status_code": 1004, "status_msg": "no key"}},
        502,
        "no key",
    ),
    "no choice": ({"id": "c", "choices": []}, 502, "choices"),
    "a choice": (
        {
            "choices": [
                {
                    "message": MESSAGE,
                    "finish_reason": "error",
                    "error": {"code": 503, "message": "provider went away"},
                }
            ]
        },
        503,
        "provider went away",
    ),
}


@pytest.mark.parametrize("kind", FAILED)
@pytest.mark.parametrize("path", PATHS)
async def test_other_errors_within_status_200(
    ask: Any, raw: RawBackend, spans: Any, path: str, kind: str
):
    answer, code, why = FAILED[kind]
    raw.answer = http_response(json.dumps(answer).encode())
    status, body = await ask(path)
    if path == "/chat/completions":  # as without the proxy
        assert (status, json.loads(body)) == (200, answer)
    else:
        assert status == code
        assert why in json.loads(body)["error"]["message"]
    (span,) = await spans()
    assert span.status.status_code == "ERROR"
    assert why in span.status.description


@pytest.mark.parametrize("path", PATHS)
async def test_an_error_in_a_list(ask: Any, raw: RawBackend, path: str):
    """As Gemini's endpoint for OpenAI's clients sends it."""
    answer = [{"error": {"code": 400, "message": "no such tool", "status": "INVALID_ARGUMENT"}}]
    raw.answer = http_response(json.dumps(answer).encode(), status="400 Bad Request")
    status, body = await ask(path)
    assert status == 400
    if path == "/messages":
        assert json.loads(body)["error"]["message"] == "no such tool"
    else:
        assert json.loads(body) == answer
