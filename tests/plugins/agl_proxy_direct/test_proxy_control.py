"""Control of a proxy by its object, over HTTP and by the command; calls that pass through."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from agl_core import semconv
from agl_core.errors import ConfigError, LaunchError
from agl_core.plugins import build_component
from agl_core.types import AttemptedRollout
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_serving import PythonServerLauncherArgs, mint_token
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore

CHAT: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "hi"}]}


async def call(url: str, path: str = "/chat/completions", body: Any = CHAT) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as reply:
        return reply.status, json.loads(await reply.text())


async def test_control_over_http(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, spans: Any
):
    proxy = await serve(backend(models), max_calls_per_rollout=50)
    root = proxy.base_url.removesuffix("/v1") + "/control"
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint

    assert await call(root, "/version", {"version": "7"}) == (200, {"models": ["q"]})
    await call(url)
    assert await call(root, "/flush", {}) == (200, {"models": ["q"]})
    assert (await spans())[0].attributes[semconv.MODEL_VERSION] == "7"

    await call(root, "/pause", {})
    held = asyncio.ensure_future(call(url))
    async with aiohttp.ClientSession() as session, session.get(root + "/status") as reply:
        status = await reply.json()
    assert status["paused"] is True
    assert status["spans"] == {"waiting": 0, "stored": 1, "refused": 0, "store_error": None}
    (member,) = status["backends"]
    assert (member["model_name"], member["calls"], member["version"]) == ("q", 1, "7")
    assert "api_key" not in json.dumps(status)
    await call(root, "/resume", {})
    assert (await held)[0] == 200
    assert await call(root, "/drain", {"deadline": 1}) == (200, {"in_flight": 0})
    await call(root, "/resume", {})

    with ScriptedModels([Reply("the other")]) as other:
        await call(root, "/models", {"model_list": [backend(other)]})
        _, body = await call(url)
    assert body["choices"][0]["message"]["content"] == "the other"

    for path, order, expected in (
        ("/models", {"model_list": [{}]}, 422),
        ("/drain", {"deadline": -1}, 422),
        ("/pause", {"what": 1}, 422),
        ("/explode", {}, 404),
    ):
        status_code, body = await call(root, path, order)
        assert (status_code, set(body)) == (expected, {"error"})


async def test_a_new_list_does_not_drop_calls_in_flight(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout
):
    models.script = [Reply("one two three", chunk_delay=0.2)]
    proxy = await serve(backend(models))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    with ScriptedModels([Reply("new")]) as other:
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            stream = await client.chat.completions.create(**CHAT, stream=True)
            text = ""
            async for chunk in stream:
                if not text:
                    proxy.update_model_list([backend(other)])
                    made = await client.chat.completions.create(**CHAT)
                    assert made.choices[0].message.content == "new"
                text += chunk.choices[0].delta.content or ""
    assert text == "one two three"
    with pytest.raises(ConfigError, match=r"model_list\.0"):
        proxy.update_model_list([{"model_name": "q"}])
    assert proxy.get_model_list() == [backend(other)]


async def test_weights_that_change_during_a_call_are_both_named(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, spans: Any
):
    models.script = [Reply("late", delay=0.3)]
    proxy = await serve(backend(models))
    proxy.set_model_version("1")
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    flying = asyncio.ensure_future(call(url))
    async with asyncio.timeout(10):
        while not models.requests:
            await asyncio.sleep(0.005)
    proxy.set_model_version("2", "q")
    await flying
    attributes = (await spans())[0].attributes
    assert attributes[semconv.MODEL_VERSION] == "1"
    assert attributes[semconv.MODEL_VERSION + ".end"] == "2"


async def test_a_restart_keeps_the_latest_version_of_each_model(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, spans: Any
):
    proxy = await serve(backend(models), {**backend(models), "model_name": "other"})
    proxy.set_model_version("1", "q")
    proxy.set_model_version("2", "other")
    proxy.set_model_version("3")
    proxy.set_model_version("4", "q")
    for _ in range(2):
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id, "q").endpoint
        for model in ("q", "other"):
            assert (await call(url, body={**CHAT, "model": model}))[0] == 200
        await proxy.restart()
    found = [span.attributes[semconv.MODEL_VERSION] for span in await spans()]
    assert found == ["4", "3"] * 2


@pytest.mark.parametrize("mode", ["thread", "asyncio"])
async def test_both_launch_modes(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, mode: str
):
    proxy = await serve(backend(models), launch_mode=mode)
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    assert (await call(url))[0] == 200
    proxy.update_model_list([backend(models, model="hosted_vllm/R")])
    assert (await call(url))[1]["model"] == "R"
    await proxy.pause()
    await proxy.resume()
    await proxy.flush()
    assert await proxy.drain(1) == 0
    await proxy.restart()
    assert proxy.is_running()


async def test_calls_of_unknown_protocols_pass_unchanged(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, spans: Any
):
    proxy = await serve(backend(models))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    status, body = await call(url, "/tokenize", {"model": "q", "prompt": "a b", "odd": [1]})
    assert status == 200 and body["count"] == 2
    seen = models.requests[-1]
    assert (seen.path, seen.body) == ("/v1/tokenize", {"model": "Q", "prompt": "a b", "odd": [1]})
    status, _ = await call(url, "/no/such", {"x": 1})
    assert status == 404
    first, second = await spans()
    assert first.name == "POST /tokenize" and first.status.status_code == "OK"
    assert second.attributes["error.type"] == "backend_404"


async def test_invalid_requests_get_an_error_in_their_protocol(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout
):
    other = {**backend(models), "model_name": "r"}
    proxy = await serve(backend(models), other)
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id, "q").endpoint
    for body, status, code in (
        ([], 400, "invalid_json"),
        ({"messages": []}, 400, "model_missing"),
        ({"model": "nobody"}, 404, "model_not_found"),
    ):
        answered, told = await call(url, body=body)
        assert (answered, told["error"]["code"]) == (status, code)
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/messages", data=b"{broken") as reply,
    ):
        assert (reply.status, (await reply.json())["type"]) == (400, "error")
    assert models.requests == []


async def test_life(
    store: InMemoryLightningStore, backend: Any, models: ScriptedModels, caplog: Any
):
    proxy = build_component(
        "proxy", {"port": None, "model_list": [backend(models)]}, default="direct"
    )
    assert isinstance(proxy, DirectProxy)
    with pytest.raises(ValueError, match="needs a store"):
        await proxy.start()
    with pytest.raises(LaunchError, match="does not run"):
        await proxy.pause()
    await proxy.stop()
    assert "stop() has no effect" in caplog.text
    proxy.set_store(store)
    await proxy.start()
    with pytest.raises(LaunchError, match="runs already"):
        await proxy.start()
    another = InMemoryLightningStore()
    proxy.set_store(another)
    claim = await another.start_rollout(input={})
    await call(proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint)
    assert len((await another.query_spans(claim.rollout_id)).items) == 1
    await proxy.stop()


async def test_defaults_of_the_model_list(
    serve: Any, backend: Any, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MY_KEY", "secret")
    entry = backend(models, api_key="os.environ/MY_KEY", temperature=0.3, top_p=0.9, rpm=5)
    proxy = await serve(entry)
    await call(proxy.base_url, body={**CHAT, "top_p": 0.5})
    body = models.requests[-1].body
    assert (body["temperature"], body["top_p"]) == (0.3, 0.5)
    assert "rpm" not in body
    assert models.requests[-1].headers["authorization"] == "Bearer secret"


async def test_the_command_serves_a_proxy(models: ScriptedModels):
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0, launcher_args=PythonServerLauncherArgs())
    await server.start()
    claim = await store.start_rollout(input={})
    command = ["-m", "agl_cli_kit", "proxy", "--port", "0", "--store", server.endpoint]
    named = ["--model", f"q={models.base_url}", "--model", f"r=openai/R@{models.base_url}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, *named, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        found = re.search(r"http://\S+", line)
        assert found, line
        url = found[0].replace(
            "/v1", f"/rollout/{claim.rollout_id}/attempt/{claim.attempt.attempt_id}/v1"
        )
        assert (await call(url))[1]["model"] == "q"
        assert (await call(url, body={**CHAT, "model": "r"}))[1]["model"] == "R"
        items = (await store.query_spans(claim.rollout_id)).items
        assert ["response_token_ids" in span.attributes for span in items] == [True, False]
        process.send_signal(signal.SIGINT)
        rest, _ = await asyncio.wait_for(process.communicate(), 30)
        assert rest.decode().strip().endswith("Stopped")
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
        await server.stop()


@pytest.mark.parametrize("field", ["api_key", "model", "extra_headers", "temperature", "tools"])
async def test_a_model_list_from_http_does_not_read_the_environment(
    serve: Any, backend: Any, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch, field: str
):
    secret = "the-secret-of-the-operator"
    monkeypatch.setenv("AGL_AUTH_TOKEN", secret)
    proxy = await serve(backend(models), auth_token=secret)
    reference = "os.environ/AGL_AUTH_TOKEN"
    wanted: Any = {"extra_headers": {"x": reference}, "tools": [{"a": [{reference: 1}]}]}
    entry = backend(models, **{field: wanted.get(field, reference)})
    token = mint_token(secret, "algorithm", lifetime=60)
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session:
        url = proxy.base_url.removesuffix("/v1") + "/control/models"
        async with session.post(url, json={"model_list": [entry]}) as reply:
            assert reply.status == 422
            message = (await reply.json())["error"]["message"]
        assert f"model_list.0.litellm_params.{field}" in message
        assert "not from what comes over HTTP" in message and secret not in message
        async with session.post(proxy.base_url + "/chat/completions", json=CHAT) as reply:
            assert reply.status == 200  # the backends are unchanged
    assert secret not in str(models.requests)


async def test_a_model_list_from_http_gets_no_address_of_the_environment(
    serve: Any, backend: Any, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
    proxy = await serve(backend(models))
    entry = {"model_name": "m", "litellm_params": {"model": "openai/gpt"}}
    url = proxy.base_url.removesuffix("/v1") + "/control"
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/models", json={"model_list": [entry]}) as reply:
            assert reply.status == 200, await reply.text()
        async with session.get(f"{url}/status") as reply:
            found = await reply.json()
    assert [each["api_base"] for each in found["backends"]] == ["https://api.openai.com/v1"]
