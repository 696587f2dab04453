"""Removal of a backend's credentials from its responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core.errors import ConfigError
from agl_core.types import AttemptedRollout
from agl_proxy_direct import parse_model_list
from agl_proxy_direct.redaction import Redactor

from .raw_backend import RawBackend, http_response, raw_call
from .test_proxy_hostile import GOOD, target

KEY = "sk-0123456789"


@given(st.lists(st.sampled_from([KEY, KEY[:5], "s", "\n", "text"]), max_size=8), st.data())
def test_a_secret_is_removed_from_a_stream_at_any_cut(pieces: list[str], data: st.DataObject):
    stream = "".join(pieces).encode()
    redactor, out, rest = Redactor([KEY]), b"", stream
    while rest:
        size = data.draw(st.integers(1, 16))
        out += redactor.feed(rest[:size])
        rest = rest[size:]
    out += redactor.close()
    assert out == stream.replace(KEY.encode(), b"[redacted]")


@pytest.mark.parametrize("key", ["none", "EMPTY", "theirs", "not-needed", "Bearer no-key-required"])
def test_words_that_stand_for_no_key_are_kept(key: str):
    assert not Redactor([key])


@pytest.mark.parametrize("secret", [f"Bearer {KEY}", f"basic {KEY}", KEY, 'a"quoted/key'])
def test_forms_of_a_secret(secret: str):
    redactor = Redactor([secret])
    plain = secret.split()[-1]
    assert plain not in redactor.text(f"bad key {plain}!")
    assert json.dumps(plain)[1:-1] not in redactor.text(json.dumps({"error": plain}))


def model_list(**params: Any) -> list[dict[str, Any]]:
    given = {"model": "hosted_vllm/Q", "api_base": "http://127.0.0.1:9/v1", **params}
    return [{"model_name": "q", "litellm_params": given}]


def test_a_login_in_a_url_becomes_a_header():
    (backend,) = parse_model_list(model_list(api_base="http://me:p%40ss-word@gpu0:8000"))
    assert backend.api_base == "http://gpu0:8000/v1"
    assert backend.headers == (("authorization", "Basic bWU6cEBzcy13b3Jk"),)
    assert list(backend.credentials()) == ["Basic bWU6cEBzcy13b3Jk"]


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"api_base": "http://gpu0:99999/v1"}, "is not an HTTP URL"),
        ({"api_base": "http://gpu0:0/v1"}, "is not an HTTP URL"),
        ({"api_base": "http://me:secret@/v1"}, "'http:///v1' is not an HTTP URL"),
        ({"api_base": "http://gpu0/v1?key=secret"}, "is not an HTTP URL"),
        ({"api_base": "http://gpu 0/v1"}, "is not an HTTP URL"),
        ({"api_base": "http://[::1/v1"}, "is not an HTTP URL"),
        ({"api_key": "a key\n"}, "line break"),
        ({"extra_headers": {"x": "a\r\nb: c"}}, "not a valid HTTP header"),
        ({"extra_headers": {"x y": "a"}}, "not a valid HTTP header"),
        ({"timeout": float("inf")}, "finite"),
    ],
)
def test_entries_that_no_call_could_use_are_refused(params: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why) as caught:
        parse_model_list(model_list(**params))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("where", ["extra_headers", "login", "caller"])
async def test_all_credentials_of_a_call_are_removed(
    serve: Any, backend: Any, claim: AttemptedRollout, spans: Any, where: str
):
    raw = RawBackend()
    async with raw.serve():
        params: dict[str, Any] = {}
        sent: dict[str, str] = {}
        secret = KEY
        if where == "extra_headers":
            params["extra_headers"] = {"X-Api-Token": KEY, "Accept": "application/json"}
        elif where == "login":
            params["api_base"] = f"http://me:{KEY}@127.0.0.1:{raw.port}/v1"
            secret = "bWU6c2stMDEyMzQ1Njc4OQ=="
        else:
            sent["authorization"] = f"Bearer {KEY}"
        proxy = await serve(backend(raw, **params))
        body = {**GOOD["hosted_vllm/Q"], "echo": [secret, "application/json"]}
        raw.answer = http_response(json.dumps(body).encode(), x_echo=secret)
        port, url = target(proxy, claim, "/chat/completions")
        status, headers, told = await raw_call(port, url, b'{"messages":[]}', **sent)
    assert secret in str(raw.requests[0].headers)
    assert status == 200
    assert json.loads(told)["echo"] == ["[redacted]", "application/json"]
    assert headers["x-echo"] == "[redacted]"
    (span,) = await spans()
    assert KEY not in span.model_dump_json() and secret not in span.model_dump_json()


@pytest.mark.parametrize("key", ["not-needed", "assistant", "finish_reason", "no-api-key-needed"])
async def test_a_word_that_an_agent_sends_for_no_key_stays_in_its_answers(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout, key: str
):
    body = json.dumps({**GOOD["hosted_vllm/Q"], "said": key}).encode()
    raw.answer = http_response(body)
    port, url = target(await serve(backend(raw)), claim, "/chat/completions")
    sent = {"authorization": f"Bearer {key}"}
    status, _, told = await raw_call(port, url, b'{"messages":[]}', **sent)
    assert key in str(raw.requests[0].headers)
    assert (status, json.loads(told)["said"]) == (200, key)
    assert json.loads(told)["choices"] == GOOD["hosted_vllm/Q"]["choices"]
