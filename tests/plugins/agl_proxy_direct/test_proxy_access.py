"""Access control: a table of tokens and paths."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import aiohttp
import jwt
import pytest

from agl_core.errors import ConfigError
from agl_core.types import AttemptedRollout
from agl_proxy_direct import DirectProxy
from agl_scripted import ScriptedModels
from agl_serving import mint_token
from agl_store_memory import InMemoryLightningStore

SECRET = "a-secret-of-good-length"
BODY: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "hi"}]}

Tokens = dict[str, str | None]


@pytest.fixture
async def other(store: InMemoryLightningStore) -> AttemptedRollout:
    return await store.start_rollout(input={"task": 2})


@pytest.fixture
def tokens(claim: AttemptedRollout, other: AttemptedRollout) -> Tokens:
    def attempt(of: AttemptedRollout, **more: Any) -> str:
        ids = {"rollout_id": of.rollout_id, "attempt_id": of.attempt.attempt_id}
        return mint_token(SECRET, "attempt", **{"lifetime": 60, **ids, **more})

    forged = {"aud": "agl-store", "scope": "admin", "exp": int(time.time()) + 60}
    return {
        "secret": SECRET,
        "algorithm": mint_token(SECRET, "algorithm", lifetime=60),
        "runner": mint_token(SECRET, "runner", lifetime=60),
        "read": mint_token(SECRET, "read", lifetime=60),
        "own": attempt(claim),
        "other's": attempt(other),
        "own, other model": attempt(claim, models=["gpt"]),
        "own, this model": attempt(claim, models=["q", "gpt"]),
        "expired": attempt(claim, lifetime=-1),
        "of another secret": mint_token("another-secret-of-length", "admin", lifetime=60),
        "signed by the public": jwt.encode(forged, "agl-store" * 4, algorithm="HS256"),
        "unsigned": jwt.encode(forged, "", algorithm="none"),
        "none": None,
    }


@pytest.fixture
async def proxy(serve: Any, models: ScriptedModels, backend: Any) -> DirectProxy:
    return await serve(backend(models), auth_token=SECRET)


# Status per token: own attempt, other attempt, no attempt, list of models, control, tokenize.
TABLE = {
    "secret": (200, 200, 200, 200, 200, 200),
    "algorithm": (200, 200, 200, 200, 200, 200),
    "runner": (200, 200, 200, 200, 403, 200),
    "read": (403, 403, 403, 403, 403, 403),
    "own": (200, 403, 403, 403, 403, 200),
    "other's": (403, 200, 403, 403, 403, 403),
    "own, other model": (403, 403, 403, 403, 403, 403),
    "own, this model": (200, 403, 403, 403, 403, 200),
    "expired": (401, 401, 401, 401, 401, 401),
    "of another secret": (401, 401, 401, 401, 401, 401),
    "signed by the public": (401, 401, 401, 401, 401, 401),
    "unsigned": (401, 401, 401, 401, 401, 401),
    "none": (401, 401, 401, 401, 401, 401),
}


@pytest.mark.parametrize("who", TABLE)
async def test_what_each_token_may_do(
    proxy: DirectProxy,
    store: InMemoryLightningStore,
    models: ScriptedModels,
    claim: AttemptedRollout,
    other: AttemptedRollout,
    tokens: Tokens,
    who: str,
):
    token = tokens[who]
    headers: dict[str, str] = {}
    if token is not None and who.startswith("own"):
        headers["x-api-key"] = token  # the header of Anthropic's clients
    elif token is not None:
        headers["authorization"] = f"Bearer {token}"
    root = proxy.base_url.removesuffix("/v1")

    def of(rollout: AttemptedRollout) -> str:
        return f"{root}/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}/v1"

    async with aiohttp.ClientSession(headers=headers) as session:

        async def status(method: str, url: str) -> int:
            async with session.request(method, url, json=BODY) as reply:
                return reply.status

        got = (
            await status("POST", of(claim) + "/chat/completions"),
            await status("POST", of(other) + "/chat/completions"),
            await status("POST", root + "/v1/chat/completions"),
            await status("GET", root + "/v1/models"),
            await status("GET", root + "/control/status"),
            await status("POST", of(claim) + "/tokenize"),
        )
        assert await status("GET", root + "/health") == 200
    assert got == TABLE[who]
    # Only allowed calls reached a model, without any token, and left spans in allowed attempts.
    assert len(models.requests) == sum(got[i] == 200 for i in (0, 1, 2, 5))
    for seen in models.requests:
        assert not {"authorization", "x-api-key"} & set(seen.headers)
    foreign = (await store.query_spans(other.rollout_id)).items
    assert len([s for s in foreign if s.status.status_code == "OK"]) == (got[1] == 200)


async def test_a_restricted_token_sees_only_its_models(
    proxy: DirectProxy, claim: AttemptedRollout, tokens: Tokens
):
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    for who, names in {"own": ["q"], "own, other model": []}.items():
        headers = {"authorization": f"Bearer {tokens[who]}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url + "/models", headers=headers) as reply,
        ):
            assert [item["id"] for item in (await reply.json())["data"]] == names


async def test_resources_of_an_attempt_carry_its_token(
    proxy: DirectProxy, claim: AttemptedRollout, models: ScriptedModels
):
    llm = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id)
    assert proxy.as_resource().api_key is None
    headers = {"authorization": f"Bearer {llm.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(llm.endpoint + "/chat/completions", json=BODY) as reply,
    ):
        assert reply.status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_refusals_are_in_the_callers_protocol(proxy: DirectProxy, path: str):
    root = proxy.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session, session.post(root + path, json=BODY) as reply:
        body = await reply.json()
    kind = "authentication_error"
    assert reply.status == 401
    assert body["error"]["type"] == kind
    assert ("code" in body["error"]) == (path == "/v1/chat/completions")


async def test_keys_of_callers_and_backends(serve: Any, backend: Any, models: ScriptedModels):
    async def key_seen(**params: Any) -> Any:
        proxy = await serve(backend(models, **params))
        headers = {"authorization": "Bearer mine", "cookie": "a=b"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(proxy.base_url + "/chat/completions", json=BODY) as reply,
        ):
            assert reply.status == 200
        assert "cookie" not in models.requests[-1].headers
        return models.requests[-1].headers

    assert (await key_seen())["authorization"] == "Bearer mine"
    assert (await key_seen(api_key="theirs"))["authorization"] == "Bearer theirs"
    seen = await key_seen(extra_headers={"X-Team": "rl"})
    assert seen["x-team"] == "rl"
    seen = await key_seen(model="anthropic/Q", api_key="theirs")
    assert seen["x-api-key"] == "theirs" and "authorization" not in seen


async def test_a_proxy_on_a_network_answers_to_any_host_name(serve: Any, backend: Any, models: Any):
    proxy = await serve(backend(models), host="0.0.0.0", insecure=True)
    async with (
        aiohttp.ClientSession(headers={"host": "proxy:4000"}) as session,
        session.post(proxy.base_url + "/chat/completions", json=BODY) as reply,
    ):
        assert reply.status == 200


async def test_pages_of_other_origins_may_not_call(
    serve: Any, backend: Any, models: ScriptedModels
):
    proxy = await serve(backend(models))
    for headers, status in (
        ({"origin": "https://evil.test"}, 403),
        ({"host": "evil.test"}, 421),
        ({}, 200),
    ):
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(proxy.base_url + "/chat/completions", json=BODY) as reply,
        ):
            assert reply.status == status
    assert len(models.requests) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"host": "0.0.0.0"}, "auth_token"),
        ({"auth_token": "short"}, "16 characters"),
        ({"model_list": [{"litellm_params": {"model": "a"}}]}, "model_list.0.model_name"),
        (
            {"model_list": [{"model_name": "q", "litellm_params": {"model": "a"}}]},
            "a needs a base URL",
        ),
        (
            {
                "model_list": [
                    {"model_name": "q", "litellm_params": {"model": "a", "api_base": "x"}}
                ]
            },
            "is not an HTTP URL",
        ),
        (
            {
                "model_list": [
                    {
                        "model_name": "q",
                        "litellm_params": {"model": "openai/a", "api_key": "os.environ/NO_SUCH"},
                    }
                ]
            },
            "NO_SUCH is not set",
        ),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        DirectProxy(**options)


_FORM = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (
            gzip.compress(json.dumps({"model": "gpt"}).encode(), mtime=0),
            {"content-encoding": "gzip"},
        ),
        (_FORM, {"content-type": "multipart/form-data; boundary=x"}),
        (b'{"model": "gpt", "n": 01}', {}),
    ],
)
async def test_a_token_of_some_models_sends_no_body_that_hides_a_model(
    proxy: DirectProxy,
    claim: AttemptedRollout,
    tokens: Tokens,
    body: bytes,
    kind: dict[str, str],
):
    ids = f"{claim.rollout_id}/attempt/{claim.attempt.attempt_id}"
    url = f"{proxy.base_url.removesuffix('/v1')}/rollout/{ids}/v1/tokenize"
    statuses: list[int] = []
    for who in ("own, this model", "own"):
        headers = {"authorization": f"Bearer {tokens[who]}", **kind}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(url, data=body) as reply,
        ):
            statuses.append(reply.status)
    assert statuses[0] == 415
    assert statuses[1] != 415, "a token of all models hides nothing"
