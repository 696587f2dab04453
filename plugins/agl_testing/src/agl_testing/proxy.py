"""The conformance suite for LLM proxies.

::

    class TestMyProxy(ProxySuite):
        flags = frozenset({"streaming", "token_ids"})

        @pytest.fixture
        def make_proxy(self):
            return lambda **options: MyProxy(**options)
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import aiohttp
import pytest

from agl_core import semconv
from agl_core.adapter import TraceToMessages
from agl_core.proxy import LLMProxy
from agl_core.store import InMemoryLightningStore
from agl_core.types import LLM, AttemptedRollout, ProxyLLM, Span
from agl_testing.models import Reply, ScriptedModels, prompt_tokens
from agl_testing.suite import Suite, requires

__all__ = ["ProxySuite"]

MESSAGES = [{"role": "user", "content": "How are you?"}]
ANSWER = Reply("Fine, thank you all.")


def backend(models: ScriptedModels, name: str = "m") -> dict[str, Any]:
    """Return an entry of a model list that leads to a scripted server."""
    return {
        "model_name": name,
        "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": models.base_url},
    }


class ProxySuite(Suite):
    """Everything an LLM proxy must do.

    The author supplies a fixture ``make_proxy``: a callable that takes ``model_list`` and ``store``
    and returns a proxy that is not started, on a free port of loopback.
    """

    suite_name = "proxy"
    FLAGS: ClassVar[dict[str, str]] = {
        "streaming": "the pieces of an answer reach the agent as they come",
        "token_ids": "the span has the ids and log-probabilities that the backend can give",
        "translation": "an agent may speak Anthropic's protocol to a backend that speaks OpenAI's",
    }

    @pytest.fixture
    def make_proxy(self) -> Callable[..., LLMProxy]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `make_proxy`")

    @pytest.fixture
    def proxy_store(self) -> InMemoryLightningStore:
        return InMemoryLightningStore()

    @pytest.fixture
    def models(self) -> Iterator[ScriptedModels]:
        with ScriptedModels([ANSWER]) as models:
            yield models

    @pytest.fixture
    def proxy(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: InMemoryLightningStore,
        models: ScriptedModels,
    ) -> LLMProxy:
        return make_proxy(model_list=[backend(models)], store=proxy_store)

    # -- life ------------------------------------------------------------------------------------

    async def test_it_starts_stops_and_starts_again(self, proxy: LLMProxy):
        assert isinstance(proxy, LLMProxy)
        assert not proxy.is_running()
        for _ in range(2):
            await proxy.start()
            assert proxy.is_running()
            assert await chat(proxy.base_url) == ANSWER.text
            await proxy.stop()
            assert not proxy.is_running()

    async def test_it_listens_no_more_after_the_stop(self, proxy: LLMProxy):
        async with running(proxy):
            host, port = proxy.base_url.split("/")[2].split(":")
        with pytest.raises(OSError, match=r".+"), socket.create_connection((host, int(port)), 1):
            pass

    async def test_it_needs_a_store(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        with pytest.raises(ValueError, match="store"):
            await make_proxy(model_list=[backend(models)], store=None).start()

    async def test_a_pickled_copy_has_the_settings_and_does_not_run(
        self, make_proxy: Callable[..., LLMProxy], models: ScriptedModels
    ):
        copy = pickle.loads(pickle.dumps(make_proxy(model_list=[backend(models)], store=None)))
        assert not copy.is_running()
        assert copy.get_model_list() == [backend(models)]
        copy.set_store(InMemoryLightningStore())
        async with running(copy):
            assert await chat(copy.base_url) == ANSWER.text

    # -- calls and their spans -------------------------------------------------------------------

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_call_passes_whole_and_is_stored(
        self,
        proxy: LLMProxy,
        proxy_store: InMemoryLightningStore,
        models: ScriptedModels,
        stream: bool,
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, stream=stream, temperature=0.5) == ANSWER.text
            # No flush: an agent that has the whole answer may end its attempt at once.
            (span,) = await spans_of(proxy_store, rollout)
        assert models.requests[0].body["messages"] == MESSAGES
        assert models.requests[0].body["temperature"] == 0.5
        assert span.attributes["gen_ai.request.model"] == "m"
        assert span.status.status_code != "ERROR"
        assert span.end_time is not None
        assert span.end_time >= (span.start_time or 0)
        (conversation,) = TraceToMessages().adapt([span])
        assert [(m["role"], m["content"]) for m in conversation["messages"]] == [
            ("user", "How are you?"),
            ("assistant", ANSWER.text),
        ]

    async def test_a_call_outside_a_rollout_passes_and_is_not_stored(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore
    ):
        async with running(proxy):
            assert await chat(proxy.base_url) == ANSWER.text
            await proxy.flush()
        assert (await proxy_store.statistics()).get("total_spans") == 0

    async def test_calls_of_many_attempts_do_not_mix(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore, models: ScriptedModels
    ):
        models.script = lambda seen: Reply("echo " + seen.body["messages"][0]["content"])

        async def one(index: int) -> None:
            rollout, llm = await attempt_of(proxy, proxy_store)
            for turn in range(3):
                text = f"{index}-{turn}"
                messages = [{"role": "user", "content": text}]
                assert await chat(llm.endpoint, messages=messages) == f"echo {text}"
            spans = await spans_of(proxy_store, rollout)
            said = [c["messages"][0].get("content") for c in TraceToMessages().adapt(spans)]
            assert said == [f"{index}-{turn}" for turn in range(3)]

        async with running(proxy):
            await asyncio.gather(*(one(index) for index in range(12)))

    @requires("token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_span_has_exact_ids_and_logprobs(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore, stream: bool
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            await chat(llm.endpoint, stream=stream)
            (span,) = await spans_of(proxy_store, rollout)
        prompt = prompt_tokens({"messages": MESSAGES})
        assert span.attributes["prompt_token_ids"] == [token.id for token in prompt]
        assert span.attributes["response_token_ids"] == [token.id for token in ANSWER.tokens]
        content = json.loads(str(span.attributes["logprobs.content"]))
        logprobs = [item["logprob"] for item in content]
        assert logprobs == pytest.approx([token.logprob for token in ANSWER.tokens])

    @requires("token_ids")
    async def test_the_agent_sees_only_what_it_asked_for(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore
    ):
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions") as reply:
                body = await reply.json()
        assert "prompt_token_ids" not in body
        assert "token_ids" not in body["choices"][0]
        assert body["choices"][0].get("logprobs") is None

    @requires("translation")
    async def test_an_agent_may_speak_anthropics_protocol(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore, models: ScriptedModels
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/messages", max_tokens=50) as reply:
                body = await reply.json()
            assert await spans_of(proxy_store, rollout)
        assert body["content"] == [{"type": "text", "text": ANSWER.text}]
        assert models.requests[0].path.endswith("/chat/completions")

    # -- streams ---------------------------------------------------------------------------------

    @requires("streaming")
    async def test_a_stream_reaches_the_agent_as_it_comes(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore, models: ScriptedModels
    ):
        models.script = [Reply("one two three four", chunk_delay=0.2)]
        loop = asyncio.get_running_loop()
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            start = loop.time()
            async with post(llm.endpoint, "/chat/completions", stream=True) as reply:
                await reply.content.readline()
                first = loop.time() - start
                await reply.read()
        whole = loop.time() - start
        assert first < whole / 2

    @requires("streaming")
    async def test_a_client_that_goes_away_ends_the_call(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore, models: ScriptedModels
    ):
        models.script = [Reply("word " * 200, chunk_delay=0.05)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", stream=True) as reply:
                await reply.content.readline()
                reply.close()
            assert await soon(lambda: models.disconnects == 1)
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    # -- trouble ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", [400, 401, 404])
    async def test_the_backends_error_is_the_agents(
        self,
        proxy: LLMProxy,
        proxy_store: InMemoryLightningStore,
        models: ScriptedModels,
        status: int,
    ):
        models.script = [Reply(error_status=status, error_message="no such luck")]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions") as reply:
                assert reply.status == status
                assert "no such luck" in (await reply.json())["error"]["message"]
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    async def test_a_backend_that_breaks_off_is_an_error(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore, models: ScriptedModels
    ):
        models.script = [Reply("a b c d e f", drop_after=3)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            try:
                text = await asyncio.wait_for(chat(llm.endpoint, stream=True), 30)
            except (aiohttp.ClientError, RuntimeError):
                text = None
            assert text is None, "a stream that broke off looks as if it were whole"
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    async def test_an_unknown_model_is_the_agents_mistake(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore
    ):
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", model="nobody") as reply:
                assert 400 <= reply.status < 500

    # -- control ---------------------------------------------------------------------------------

    async def test_a_new_model_list_counts_at_once(self, proxy: LLMProxy):
        with ScriptedModels([Reply("the other")]) as other:
            async with running(proxy):
                assert await chat(proxy.base_url) == ANSWER.text
                proxy.update_model_list([backend(other)])
                assert await chat(proxy.base_url) == "the other"
                assert proxy.get_model_list() == [backend(other)]

    async def test_spans_carry_the_models_version(
        self, proxy: LLMProxy, proxy_store: InMemoryLightningStore
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            for version in ("step-1", "step-2"):
                proxy.set_model_version(version)
                await chat(llm.endpoint)
            spans = await spans_of(proxy_store, rollout)
        versions = [span.attributes.get(semconv.MODEL_VERSION) for span in spans]
        assert versions == ["step-1", "step-2"]

    async def test_a_paused_proxy_holds_new_calls(self, proxy: LLMProxy):
        async with running(proxy):
            await proxy.pause()
            held = asyncio.ensure_future(chat(proxy.base_url))
            await asyncio.wait({held}, timeout=0.3)
            assert not held.done()
            await proxy.resume()
            assert await asyncio.wait_for(held, 10) == ANSWER.text

    async def test_draining_waits_for_calls_in_flight(
        self, proxy: LLMProxy, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=0.5)]
        async with running(proxy):
            call = asyncio.ensure_future(chat(proxy.base_url))
            assert await soon(lambda: bool(models.requests))
            assert await proxy.drain(0.05) == 1
            assert await proxy.drain(10) == 0
            assert await asyncio.wait_for(call, 10) == "late"
            await proxy.resume()

    async def test_resources_lead_to_it(self, proxy: LLMProxy):
        async with running(proxy):
            resource = proxy.as_resource(sampling_parameters={"temperature": 0.1})
            assert isinstance(resource, ProxyLLM)
            assert resource.model == "m"
            assert resource.sampling_parameters == {"temperature": 0.1}
            baked = proxy.as_resource("ro-1", "at-1")
            assert not isinstance(baked, ProxyLLM)
            assert baked.endpoint == resource.get_base_url("ro-1", "at-1")
            assert "/rollout/ro-1/attempt/at-1" in baked.endpoint
            with pytest.raises(ValueError, match="both"):
                proxy.as_resource("ro-1")


# -- what the tests do -----------------------------------------------------------------------------


@asynccontextmanager
async def running(proxy: LLMProxy) -> AsyncIterator[LLMProxy]:
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def attempt_of(
    proxy: LLMProxy, store: InMemoryLightningStore
) -> tuple[AttemptedRollout, LLM]:
    """Start an attempt; return it and the model as its agent sees it."""
    rollout = await store.start_rollout("task")
    return rollout, proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)


async def spans_of(store: InMemoryLightningStore, rollout: AttemptedRollout) -> list[Span]:
    return list(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))


@asynccontextmanager
async def post(base_url: str, path: str, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    body = {"model": "m", "messages": MESSAGES, **body}
    async with (
        aiohttp.ClientSession() as session,
        session.post(base_url + path, json=body) as reply,
    ):
        yield reply


async def chat(base_url: str, *, stream: bool = False, **body: Any) -> str:
    """Return the text of an answer.

    Raises:
        RuntimeError: The reply is an error, or a stream without an end.
    """
    async with post(base_url, "/chat/completions", stream=stream, **body) as reply:
        raw = await reply.text()
    if reply.status != 200:
        raise RuntimeError(raw)
    if not stream:
        return json.loads(raw)["choices"][0]["message"]["content"]
    events = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data:")]
    if not events or events.pop() != "[DONE]":
        raise RuntimeError("the stream has no end")
    chunks = [json.loads(event) for event in events]
    if any("error" in chunk for chunk in chunks):
        raise RuntimeError(raw)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    if choices[-1].get("finish_reason") is None:
        raise RuntimeError("the stream does not say why it ended")
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def soon(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    """Tell whether something that the backend sees comes true in time."""
    deadline = asyncio.get_running_loop().time() + timeout
    # The scripted server runs in a thread and tells nobody.
    while not condition() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return condition()
