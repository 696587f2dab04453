"""Paths in odd forms: what the proxy decides about is what a backend gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agl_core.errors import ConfigError
from agl_core.types import AttemptedRollout
from agl_proxy_direct import DirectProxy
from agl_serving import mint_token

from .raw_backend import RawBackend, http_response, raw_call

SECRET = "a-secret-of-good-length"
BODY = json.dumps({"model": "q", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = {"id": "a", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}


@pytest.fixture
async def raw() -> AsyncIterator[RawBackend]:
    async with RawBackend(http_response(json.dumps(ANSWER).encode())).serve() as server:
        yield server


def port_of(proxy: DirectProxy) -> int:
    port = urlsplit(proxy.base_url).port
    assert port is not None
    return port


@pytest.fixture
def base(claim: AttemptedRollout) -> str:
    return f"/rollout/{claim.rollout_id}/attempt/{claim.attempt.attempt_id}/v1"


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions%3F",
        "/chat/completions%3Fx=1",
        "/chat/completions%23",
        "/chat/completions%3B",
        "/chat/completions%20",
        "/chat/completions%00",
        "/chat/%63ompletions%2Fx%2F..",
        "/x/../chat/completions",
        "/x/%2e%2e/chat/completions",
        "/./chat/completions",
        "/..%2f..%2fv1/chat/completions",
        "/chat%5Ccompletions",
        "/chat/completions%25%33%46",
        "/chat/compl%C3%A9tions",
    ],
)
async def test_a_path_that_is_not_in_normal_form_is_refused(
    serve: Any, backend: Any, raw: RawBackend, base: str, path: str
):
    proxy = await serve(backend(raw), max_calls_per_rollout=1)
    status, _, body = await raw_call(port_of(proxy), base + path, BODY)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_path"), body
    assert raw.requests == []


@pytest.mark.parametrize(
    "path",
    ["//chat/completions", "/chat//completions/", "/chat%2Fcompletions", "/%63hat/completions"],
)
async def test_another_form_of_a_known_path_is_the_same_call(
    serve: Any, backend: Any, raw: RawBackend, base: str, path: str, spans: Any
):
    proxy = await serve(backend(raw), max_calls_per_rollout=1)
    port = port_of(proxy)
    assert (await raw_call(port, base + path, BODY))[0] == 200
    assert raw.requests[0].line == "POST /v1/chat/completions HTTP/1.1"
    assert (await raw_call(port, base + path, BODY))[0] == 429
    assert len(raw.requests) == 1
    assert [span.attributes.get("agl.proxy.protocol") for span in await spans()] == ["chat"] * 2


async def test_calls_that_are_passed_through_use_the_budget(
    serve: Any, backend: Any, raw: RawBackend, base: str
):
    proxy = await serve(backend(raw), max_calls_per_rollout=1)
    port = port_of(proxy)
    for path, status in (
        ("/tokenize", 200),
        ("/chat/completions/batch", 200),
        ("/chat/completions/batch", 429),
        ("/chat/completions", 429),
        ("/tokenize", 200),
    ):
        assert (await raw_call(port, base + path, BODY))[0] == status, path


@pytest.mark.parametrize("who", ["attempt", "runner", "algorithm"])
async def test_the_calls_that_a_token_allows(
    serve: Any, backend: Any, raw: RawBackend, base: str, claim: AttemptedRollout, who: Any
):
    proxy = await serve(backend(raw, api_key="operator"), auth_token=SECRET)
    ids: dict[str, Any] = {}
    if who == "attempt":
        ids = {"rollout_id": claim.rollout_id, "attempt_id": claim.attempt.attempt_id}
    token = mint_token(SECRET, who, lifetime=60, **ids)
    port, trusted = port_of(proxy), 200 if who == "algorithm" else 403
    for method, path, status in (
        ("POST", "/chat/completions", 200),
        ("POST", "/tokenize", 200),
        ("POST", "/messages/count_tokens", 200),
        ("GET", "/models", 200),
        ("GET", "/models/q", 200),
        ("GET", "/chat/completions", trusted),
        ("PUT", "/chat/completions", trusted),
        ("POST", "/load_lora_adapter", trusted),
        ("POST", "/rollout/x/attempt/y/v1/load_lora_adapter", trusted),
        ("GET", "/files", trusted),
        ("DELETE", "/files/file-1", trusted),
        ("GET", "/responses/resp_1", trusted),
        ("GET", "/", trusted),
        ("POST", "/rerank", trusted),
    ):
        sent = len(raw.requests)
        call = raw_call(port, base + path, BODY, method, authorization=f"Bearer {token}")
        assert (await call)[0] == status, (method, path)
        if status == 403:
            assert len(raw.requests) == sent, "a call that is not allowed reached the backend"


async def test_an_operator_allows_further_calls(
    serve: Any, backend: Any, raw: RawBackend, base: str, claim: AttemptedRollout
):
    proxy = await serve(backend(raw), auth_token=SECRET, attempt_routes=["POST /rerank"])
    key = proxy.api_key_for(claim.rollout_id, claim.attempt.attempt_id)
    for path, status in (("/rerank", 200), ("//rerank/", 200), ("/score", 403)):
        call = raw_call(port_of(proxy), base + path, BODY, authorization=f"Bearer {key}")
        assert (await call)[0] == status
    with pytest.raises(ConfigError, match="attempt_routes"):
        DirectProxy(attempt_routes=["rerank"])


async def test_headers_that_replace_the_path_are_not_forwarded(
    serve: Any, backend: Any, raw: RawBackend, base: str
):
    proxy = await serve(backend(raw))
    await raw_call(
        port_of(proxy),
        base + "/chat/completions",
        BODY,
        x_original_url="/v1/load_lora_adapter",
        x_http_method_override="DELETE",
        x_request_id="kept",
    )
    sent = raw.requests[0].headers
    assert not {"x-original-url", "x-http-method-override"} & set(sent)
    assert sent["x-request-id"] == "kept"
