"""Calls below ``/v1`` that no protocol of models has: they reach the backend unchanged."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import pytest

from agl_core.proxy import LLMProxy
from agl_scripted import Reply, ScriptedModels, prompt_tokens
from agl_testing.proxy.base import (
    MESSAGES,
    ProxyTests,
    attempt_of,
    backend,
    post,
    running,
    spans_of,
)
from agl_testing.proxy.stores import TroubledStore
from agl_testing.suite import requires

__all__ = ["PassthroughTests"]


class PassthroughTests(ProxyTests):
    """Calls below ``/v1`` that no protocol of models has."""

    @requires("passthrough")
    async def test_another_call_passes_and_is_stored(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        entry = backend(models, model="hosted_vllm/real", api_key="sk-of-the-operator")
        proxy = make_proxy(model_list=[entry], store=proxy_store)
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/tokenize", extra=[1.5, None]) as reply:
                assert reply.status == 200
                assert reply.content_type == "application/json"
                body = await reply.json()
            (span,) = await spans_of(proxy_store, rollout)
        assert body["tokens"] == [token.id for token in prompt_tokens({"messages": MESSAGES})]
        (seen,) = models.requests
        assert seen.path == "/v1/tokenize"
        assert seen.body == {"model": "real", "messages": MESSAGES, "extra": [1.5, None]}
        assert seen.headers["authorization"] == "Bearer sk-of-the-operator"
        assert "/tokenize" in span.name
        assert span.status.status_code == "OK"
        assert span.attributes["http.response.status_code"] == 200
        assert span.attributes["gen_ai.request.model"] == "m"
        assert "gen_ai.operation.name" not in span.attributes

    @requires("passthrough")
    async def test_another_method_passes(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        async with running(proxy), aiohttp.ClientSession() as session:
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with session.get(llm.endpoint + "/health") as reply:
                assert reply.status == 200
                assert await reply.json() == {}
            async with session.get(llm.endpoint + "/nothing") as reply:
                assert reply.status == 404
                assert await reply.json() == {"detail": "not found"}
            await proxy.flush()
            spans = await spans_of(proxy_store, rollout)
        assert [span.status.status_code for span in spans] == ["OK", "ERROR"]
        assert [span.attributes["http.response.status_code"] for span in spans] == [200, 404]
        assert "GET" in spans[0].name
        assert spans[1].attributes["error.type"]
        assert "404" in str(spans[1].status.description)

    @requires("passthrough")
    async def test_a_call_that_names_no_model_goes_to_the_only_one(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        proxy = make_proxy(model_list=[backend(models)], store=proxy_store)
        with ScriptedModels([Reply("other")]) as other:
            async with running(proxy):
                _, llm = await attempt_of(proxy, proxy_store)
                async with post(llm.endpoint, "/tokenize", model=None) as reply:
                    assert reply.status == 200
                assert models.requests[0].body["model"] is None
                proxy.update_model_list([backend(models), backend(other, "n")])
                async with post(llm.endpoint, "/tokenize", model=None) as reply:
                    assert 400 <= reply.status < 500
                async with post(llm.endpoint, "/tokenize", model="n") as reply:
                    assert reply.status == 200
                async with post(llm.endpoint, "/tokenize", model="nobody") as reply:
                    assert reply.status == 404
            assert [seen.body["model"] for seen in other.requests] == ["n"]

    @requires("passthrough")
    @pytest.mark.parametrize("fault", [Reply(drop_after=0), Reply(delay=60)])
    async def test_a_call_that_fails_is_an_error(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        fault: Reply,
    ):
        models.script = [fault]
        proxy = make_proxy(model_list=[backend(models, timeout=0.3)], store=proxy_store)
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/tokenize") as reply:
                assert reply.status >= 500
                assert (await reply.json())["error"]["message"]
            assert await proxy.drain(5) == 0
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    @requires("routes")
    async def test_a_model_is_described_by_name(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        entries = [backend(models), backend(models, "n"), backend(models)]
        proxy = make_proxy(model_list=entries, store=TroubledStore())
        async with running(proxy), aiohttp.ClientSession() as session:
            async with session.get(proxy.base_url + "/models") as reply:
                listed = await reply.json()
            assert listed["object"] == "list"
            assert [model["id"] for model in listed["data"]] == ["m", "n"]
            async with session.get(proxy.base_url + "/models/n") as reply:
                assert reply.status == 200
                found = await reply.json()
            async with session.get(proxy.base_url + "/models/nobody") as reply:
                assert reply.status == 404
                told = await reply.json()
        assert found == listed["data"][1]
        assert set(found) >= {"id", "object", "created", "owned_by"}
        assert found["object"] == found["type"] == "model"  # OpenAI's key and Anthropic's
        assert "nobody" in told["error"]["message"]
        assert models.requests == []
