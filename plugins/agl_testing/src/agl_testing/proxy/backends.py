"""Tests of what a backend gets of a call, and what is tried when one backend of several fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from agl_core import semconv
from agl_core.errors import ConfigError
from agl_core.proxy import LLMProxy
from agl_scripted import Reply, ScriptedModels
from agl_testing.proxy.base import (
    ANSWER,
    MESSAGES,
    ProxyTests,
    attempt_of,
    backend,
    chat,
    post,
    running,
    spans_of,
)
from agl_testing.proxy.stores import TroubledStore
from agl_testing.relay import FaultyRelay
from agl_testing.suite import requires

__all__ = ["BackendTests", "BalancingTests"]

KEY = "sk-of-the-operator-0123"
AGENTS_KEY = "sk-of-the-agent-4567"
AGENTS_HEADERS = dict.fromkeys(
    (
        "cookie",
        "forwarded",
        "keep-alive",
        "proxy-authorization",
        "te",
        "x-http-method-override",
        "x-method-override",
        "x-original-url",
        "x-rewrite-url",
    ),
    "from-the-agent",
) | {"authorization": f"Bearer {AGENTS_KEY}", "x-api-key": AGENTS_KEY}
BACKENDS_HEADERS: dict[str, str] = dict.fromkeys(
    ("keep-alive", "proxy-authenticate", "set-cookie", "trailer", "upgrade"), "from-the-backend"
)
ROUTING: dict[str, Any] = {"max_retries": 1, "order": 1, "rpm": 1000, "tpm": 1_000_000, "weight": 1}
"""Parameters of LiteLLM's router, which no model gets."""
INVALID_URLS = ["no url", "ftp://h/v1", "http://", "http://h:99999/v1", "http://h/v1?a=b"]
SOME_CALLS = 40
"""So many calls that each of two backends gets one of them, even if each call is sent at random."""


async def start_and_stop(
    make_proxy: Callable[..., LLMProxy], model_list: list[dict[str, Any]]
) -> None:
    async with running(make_proxy(model_list=model_list, store=TroubledStore())):
        pass


class BackendTests(ProxyTests):
    """A backend gets what its entry of the model list says, and no secrets of others."""

    async def test_a_backend_gets_what_its_entry_says(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.setenv("AGL_TEST_BACKEND_KEY", KEY)
        entry = backend(
            models,
            model="hosted_vllm/org/real-name",
            api_key="os.environ/AGL_TEST_BACKEND_KEY",
            extra_headers={"X-Team": "snow"},
            temperature=0.25,
            top_p=0.5,
            **ROUTING,
        )
        proxy = make_proxy(model_list=[entry], store=proxy_store)
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, top_p=0.75) == ANSWER.text
            (span,) = await spans_of(proxy_store, rollout)
        assert proxy.get_model_list() == [entry]
        (seen,) = models.requests
        assert seen.path == "/v1/chat/completions"
        assert seen.body["model"] == "org/real-name"
        assert seen.body.keys().isdisjoint(ROUTING)
        assert (seen.body["temperature"], seen.body["top_p"]) == (0.25, 0.75)
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        assert seen.headers["x-team"] == "snow"
        assert seen.headers["content-type"] == "application/json"
        assert span.attributes["gen_ai.request.model"] == "m"
        added: Any = span.attributes[semconv.REQUEST_DEFAULTS]
        assert json.loads(added) == {"temperature": 0.25}, "not the agent's, and no routing"

    async def test_credentials_stay_where_they_belong(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        echo = f"Incorrect API key provided: {KEY}"
        models.script = [Reply("Fine.", headers=BACKENDS_HEADERS), Reply(echo)]
        models.script += [Reply(error_status=401, error_message=echo)]
        proxy = make_proxy(model_list=[backend(models, api_key=KEY)], store=proxy_store)
        told = ""
        async with running(proxy), aiohttp.ClientSession() as session:
            rollout, llm = await attempt_of(proxy, proxy_store)
            for _ in models.script:
                async with session.post(
                    llm.endpoint + "/chat/completions",
                    json={"model": "m", "messages": MESSAGES},
                    headers=AGENTS_HEADERS,
                ) as reply:
                    told += await reply.text() + str(reply.headers)
            await proxy.flush()
            spans = await spans_of(proxy_store, rollout)
        assert "Fine." in told
        assert "from-the-backend" not in told
        assert KEY not in told
        kept = "".join(span.model_dump_json() for span in spans)
        assert len(spans) == 3
        assert KEY not in kept
        assert AGENTS_KEY not in kept
        for seen in models.requests:
            assert "from-the-agent" not in seen.headers.values()
            assert AGENTS_KEY not in str(seen.headers)
            assert KEY in seen.headers["authorization"]

    async def test_a_login_in_a_url_is_a_header(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        url = models.base_url.replace("//", "//user:a%20secret@")
        proxy = make_proxy(model_list=[backend(models, api_base=url)], store=proxy_store)
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint) == ANSWER.text
            (span,) = await spans_of(proxy_store, rollout)
        (seen,) = models.requests
        assert seen.headers["authorization"] == "Basic dXNlcjphIHNlY3JldA=="  # "user:a secret"
        assert "secret" not in span.model_dump_json()

    async def test_an_invalid_entry_is_refused(
        self,
        make_proxy: Callable[..., LLMProxy],
        models: ScriptedModels,
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.delenv("AGL_TEST_NOT_SET", raising=False)
        bad: list[dict[str, Any]] = [{"api_base": url} for url in INVALID_URLS]
        bad += [
            {"api_key": "os.environ/AGL_TEST_NOT_SET"},
            {"api_key": "two\nlines"},
            {"timeout": 0},
            {"extra_headers": {"bad name": "x"}},
            {"extra_headers": {"x-a": "two\r\nlines"}},
            {"model": ""},
        ]
        for params in bad:
            entries = [backend(models), backend(models, "worse", **params)]
            # In the constructor or at the start; the message has the entry's place or name.
            with pytest.raises(ConfigError, match=r"\b(1|worse)\b"):
                await start_and_stop(make_proxy, entries)

    async def test_a_call_without_a_model_is_of_the_only_one(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        store = TroubledStore()
        proxy = make_proxy(model_list=[backend(models)], store=store)
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, store)
            assert await chat(llm.endpoint, model=None) == ANSWER.text
            proxy.update_model_list([backend(models), backend(models, "n")])
            async with post(llm.endpoint, "/chat/completions", model=None) as reply:
                assert 400 <= reply.status < 500
            first = (await spans_of(store, rollout))[0]
        assert first.attributes["gen_ai.request.model"] == "m"

    async def test_a_new_timeout_counts_at_once(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [ANSWER, Reply("late", delay=60)]
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint) == ANSWER.text
            proxy.update_model_list([backend(models, timeout=0.2)])
            with pytest.raises(RuntimeError, match=r"in time|[Tt]imed? ?out"):
                await asyncio.wait_for(chat(llm.endpoint), 5)


class BalancingTests(ProxyTests):
    """Several backends of one model share its calls."""

    @requires("balancing")
    @pytest.mark.parametrize(
        "fault",
        [
            *(Reply(error_status=status) for status in (429, 500, 502, 503, 504)),
            Reply(drop_after=0),
            Reply(delay=60),
        ],
        ids=lambda fault: str(fault.error_status or ("silent" if fault.delay else "broken")),
    )
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_call_that_fails_at_one_backend_is_tried_at_another(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        fault: Reply,
        stream: bool,
    ):
        with ScriptedModels([fault]) as bad:
            entries = [backend(bad, timeout=0.3), backend(models)]
            proxy = make_proxy(model_list=entries, store=proxy_store)
            async with running(proxy):
                calls = 0
                while not bad.requests and calls < SOME_CALLS:
                    calls += 1
                    rollout, llm = await attempt_of(proxy, proxy_store)
                    assert await chat(llm.endpoint, stream=stream) == ANSWER.text
                    (span,) = await spans_of(proxy_store, rollout)
                    assert span.status.status_code == "OK"
                    assert "error.type" not in span.attributes
            assert bad.requests
        assert len(models.requests) == calls
        assert bad.requests[0].body == models.requests[-1].body

    @requires("balancing")
    async def test_a_backend_that_is_gone_is_replaced(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        async with FaultyRelay(models.port) as relay:
            gone = f"http://127.0.0.1:{relay.port}/v1"
        entries = [backend(models, api_base=gone), backend(models)]
        proxy = make_proxy(model_list=entries, store=proxy_store)
        async with running(proxy):
            for _ in range(2):
                _, llm = await attempt_of(proxy, proxy_store)
                assert await chat(llm.endpoint) == ANSWER.text

    @requires("balancing")
    @pytest.mark.parametrize("status", [400, 401, 404, 422])
    async def test_a_request_that_is_wrong_is_tried_once(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        status: int,
    ):
        models.script = [Reply(error_status=status)]
        with ScriptedModels([Reply(error_status=status)]) as other:
            proxy = make_proxy(model_list=[backend(models), backend(other)], store=proxy_store)
            async with running(proxy):
                _, llm = await attempt_of(proxy, proxy_store)
                async with post(llm.endpoint, "/chat/completions") as reply:
                    assert reply.status == status
            assert len(models.requests) + len(other.requests) == 1

    @requires("balancing")
    async def test_a_call_that_no_backend_serves_ends_with_the_error(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        models.script = [Reply(error_status=503, error_message="no such luck")]
        with ScriptedModels(models.script) as other:
            proxy = make_proxy(model_list=[backend(models), backend(other)], store=proxy_store)
            async with running(proxy):
                rollout, llm = await attempt_of(proxy, proxy_store)
                async with post(llm.endpoint, "/chat/completions") as reply:
                    assert reply.status == 503
                    assert "no such luck" in await reply.text()
                await proxy.flush()
                (span,) = await spans_of(proxy_store, rollout)
            assert 2 <= len(models.requests) + len(other.requests) <= 6
            assert models.requests
            assert other.requests
        assert span.status.status_code == "ERROR"

    @requires("balancing")
    async def test_a_stream_that_has_begun_is_not_repeated(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        models.script = [Reply("a b c d", drop_after=3)]
        with ScriptedModels(models.script) as other:
            proxy = make_proxy(model_list=[backend(models), backend(other)], store=proxy_store)
            async with running(proxy):
                _, llm = await attempt_of(proxy, proxy_store)
                with pytest.raises((aiohttp.ClientError, RuntimeError)):
                    await chat(llm.endpoint, stream=True)
            assert len(models.requests) + len(other.requests) == 1

    @requires("balancing")
    async def test_backends_share_the_calls(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        models.script = [Reply("one", delay=0.2)]
        with ScriptedModels([Reply("two", delay=0.2)]) as other:
            proxy = make_proxy(model_list=[backend(models), backend(other)], store=proxy_store)

            async def call() -> str:
                _, llm = await attempt_of(proxy, proxy_store)
                return await chat(llm.endpoint)

            async with running(proxy):
                texts = await asyncio.gather(*(call() for _ in range(SOME_CALLS)))
        assert set(texts) == {"one", "two"}

    @requires("balancing")
    async def test_a_broken_connection_is_tried_again(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply(drop_after=0), ANSWER]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint) == ANSWER.text
            assert len(await spans_of(proxy_store, rollout)) == 1
        assert len(models.requests) == 2
