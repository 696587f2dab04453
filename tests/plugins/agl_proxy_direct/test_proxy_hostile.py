"""Hostile agents and backends: an error of theirs, or a whole span; never an error of the proxy."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agl_core.store import encode_span
from agl_core.types import AttemptedRollout
from agl_proxy_direct import DirectProxy

from .hostile_calls import ANSWERS, HI, KEY, REQUESTS, chat, huge_requests
from .raw_backend import RawBackend, http_response, raw_call

PATHS = ("/chat/completions", "/responses", "/messages", "/completions", "/embeddings", "/score")
PROVIDERS = ("hosted_vllm/Q", "anthropic/Q")
GOOD = {
    "hosted_vllm/Q": {"id": "a", "choices": [{"message": {"content": "x"}, "text": "x"}]},
    "anthropic/Q": {"type": "message", "content": [{"type": "text", "text": "x"}]},
}


@pytest.fixture
async def raw() -> AsyncIterator[RawBackend]:
    async with RawBackend().serve() as server:
        yield server


def target(proxy: DirectProxy, claim: AttemptedRollout, path: str) -> tuple[int, str]:
    port = urlsplit(proxy.base_url).port
    assert port is not None
    return port, f"/rollout/{claim.rollout_id}/attempt/{claim.attempt.attempt_id}/v1{path}"


def assert_readable(spans: list[Any]) -> None:
    """Check that the spans are strict JSON, which every store can take."""
    for span in spans:
        payload = encode_span(span).payload
        json.loads(payload.decode(), parse_constant=lambda name: pytest.fail(f"{name} in a span"))
        assert KEY not in payload.decode()


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_requests(
    serve: Any,
    backend: Any,
    raw: RawBackend,
    claim: AttemptedRollout,
    spans: Any,
    provider: str,
    caplog: pytest.LogCaptureFixture,
):
    raw.answer = http_response(json.dumps(GOOD[provider]).encode())
    proxy = await serve(backend(raw, provider, api_key=KEY))
    count = 0
    for path in PATHS:
        port, url = target(proxy, claim, path)
        for name, body in REQUESTS.items():
            status, _, told = await raw_call(port, url, body)
            assert status == 200 or 400 <= status < 500, (path, name, status, told)
            if status != 200 and path != "/score":
                assert json.loads(told)["error"]["message"]
            count += 1
            (span,) = await spans(offset=count - 1)
            assert span.attributes["http.response.status_code"] == status, (path, name)
    assert_readable(await spans())
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_answers(
    serve: Any,
    backend: Any,
    raw: RawBackend,
    claim: AttemptedRollout,
    spans: Any,
    provider: str,
    caplog: pytest.LogCaptureFixture,
):
    proxy = await serve(backend(raw, provider, api_key=KEY), num_retries=0)
    count = 0
    for path in PATHS[:3]:
        port, url = target(proxy, claim, path)
        for name, answer in ANSWERS.items():
            for stream in (False, True):
                raw.answer = answer
                body = {"model": "q", "messages": HI, "max_tokens": 9, "stream": stream}
                if path == "/responses":
                    body = {"model": "q", "input": "hi", "stream": stream}
                status, headers, told = await raw_call(port, url, json.dumps(body).encode())
                where = (path, name, stream, status, told[:200])
                assert status in (200, 400, 401, 502), where
                assert KEY not in told.decode("latin-1") + str(headers), where
                assert "set-cookie" not in headers
                count += 1
                (span,) = await spans(offset=count - 1)
                recorded = span.attributes["http.response.status_code"]
                # An error that ends a stream is an event; its span has the error's own status.
                assert recorded == status or (recorded == 502 and b"error" in told), where
    assert_readable(await spans())
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", ["60 MB of [[],[],…]", "10 MB of numbers"])
async def test_bodies_of_too_many_values(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout, name: str
):
    proxy = await serve(backend(raw))
    port, url = target(proxy, claim, "/chat/completions")
    status, _, told = await raw_call(port, url, huge_requests()[name])
    assert (status, json.loads(told)["error"]["code"]) == (413, "too_many_values")
    assert raw.requests == []


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
async def test_conversations_of_too_many_messages(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout, path: str
):
    proxy = await serve(backend(raw))
    port, url = target(proxy, claim, path)
    status, _, told = await raw_call(port, url, chat(messages=[{}] * 100_001))
    assert status == 400
    assert b"messages has more than 100,000 messages" in told
    assert raw.requests == []


@pytest.mark.parametrize(
    "value",
    [
        "00-" + "g" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 31 + "_" + "-" + "1" * 16 + "-01",
        "00-" + "+" + "1" * 31 + "-" + "1" * 16 + "-01",
        "00-" + "A" * 32 + "-" + "1" * 16 + "-01",
    ],
)
async def test_odd_trace_contexts_are_ignored(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout, spans: Any, value: str
):
    raw.answer = http_response(json.dumps(GOOD["hosted_vllm/Q"]).encode())
    proxy = await serve(backend(raw))
    port, url = target(proxy, claim, "/chat/completions")
    await raw_call(port, url, REQUESTS["n: -1"], traceparent=value)
    (span,) = await spans()
    assert span.parent_id is None
    assert span.trace_id != value[3:35]
