"""Headers and redirects between the proxy and a backend."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest
from yarl import URL

from agl_core.types import AttemptedRollout
from agl_proxy_direct import UpstreamError, http_upstream, parse_model_list

from .raw_backend import RawBackend, http_response, raw_call
from .test_proxy_hostile import GOOD, target

ANSWER = http_response(json.dumps(GOOD["hosted_vllm/Q"]).encode())


async def test_a_header_that_comes_twice_goes_on_twice(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout
):
    raw.answer = ANSWER
    port, url = target(await serve(backend(raw)), claim, "/chat/completions")
    beta = {"anthropic_beta": "one", "Anthropic_beta": "two"}
    status, _, _ = await raw_call(port, url, b'{"messages":[]}', **beta)
    assert status == 200
    assert [line for line in raw.requests[0].head if "anthropic" in line.lower()] == [
        "anthropic-beta: one",
        "anthropic-beta: two",
    ]


@pytest.mark.parametrize("name", ["x-forwarded-for", "X-Forwarded-Host", "x-real-ip", "forwarded"])
async def test_what_describes_the_agents_connection_does_not_go_on(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout, name: str
):
    raw.answer = ANSWER
    port, url = target(await serve(backend(raw)), claim, "/chat/completions")
    assert (await raw_call(port, url, b'{"messages":[]}', **{name: "10.0.0.1"}))[0] == 200
    assert name.lower() not in raw.requests[0].headers


async def test_an_encoded_body_that_passes_unchanged_says_so(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout
):
    raw.answer = ANSWER
    port, url = target(await serve(backend(raw)), claim, "/score")
    body = gzip.compress(b'{"text": "a"}')
    assert (await raw_call(port, url, body, content_encoding="gzip"))[0] == 200
    (request,) = raw.requests
    assert (request.headers["content-encoding"], request.body) == ("gzip", body)


async def test_a_body_that_is_written_anew_is_not_said_to_be_encoded(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout
):
    raw.answer = ANSWER
    port, url = target(await serve(backend(raw)), claim, "/chat/completions")
    assert (await raw_call(port, url, b'{"messages":[]}', content_encoding="identity"))[0] == 200
    assert "content-encoding" not in raw.requests[0].headers


@pytest.mark.parametrize(
    ("base", "location", "follows"),
    [
        ("https://h:8443/v1", "http://h:8443/v1", False),
        ("https://h/v1", "http://h/v1", False),
        ("http://h/v1", "https://h/v1", True),
        ("http://h:8000/v1", "https://h:8443/v1", True),
        ("http://h:8000/v1", "http://h:8001/v1", False),
        ("https://h:8443/v1", "/v2", True),
        ("https://h:8443/v1", "https://other:8443/v1", False),
    ],
)
def test_a_redirect_sends_the_key_only_where_it_is_as_safe(base: str, location: str, follows: bool):
    closed: list[bool] = []
    response: Any = SimpleNamespace(
        headers={"location": location}, close=lambda: closed.append(True)
    )
    entry = {"model_name": "q", "litellm_params": {"model": "hosted_vllm/Q", "api_base": base}}
    (backend,) = parse_model_list([entry])
    redirected = http_upstream._redirected  # pyright: ignore[reportPrivateUsage]
    if follows:
        assert redirected(URL(base), response, backend) == URL(base).join(URL(location))
        return
    with pytest.raises(UpstreamError, match="set api_base to that server"):
        redirected(URL(base), response, backend)
    assert closed


@pytest.mark.parametrize("status", ["600 Odd", "999 Request denied"])
async def test_a_status_that_http_does_not_have_is_an_error_of_the_backend(
    ask: Any, raw: RawBackend, spans: Any, status: str
):
    raw.answer = http_response(b"{}", status=status)
    told, body = await ask("/chat/completions")
    error = json.loads(body)["error"]
    assert (told, error["code"]) == (502, "backend_garbage")
    assert f"answered {status[:3]}" in error["message"]
    (span,) = await spans()
    assert span.attributes["error.type"] == "backend_garbage"


@pytest.mark.parametrize("location", ["http://h:999999/v1", "mailto:a", "http://[::1/"])
async def test_a_redirect_to_no_server_is_an_error_of_the_backend(
    ask: Any, raw: RawBackend, location: str
):
    raw.answer = http_response(b"", status="307 Temporary Redirect", location=location)
    status, body = await ask("/chat/completions")
    assert status == 502
    assert "which is no HTTP URL" in json.loads(body)["error"]["message"]
