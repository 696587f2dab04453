"""Calls through the proxy that the default tracer records too: every adapter counts them once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from agl_core import semconv
from agl_core.emitter import operation
from agl_core.types import AttemptedRollout, Span
from agl_scripted import Reply, ScriptedModels
from agl_tracer_otel import OtelTracer

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def chat(endpoint: str) -> None:
    with openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0) as client:
        client.chat.completions.create(model="q", messages=HI)


def chat_stream(endpoint: str) -> None:
    with openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0) as client:
        chunks = list(client.chat.completions.create(model="q", messages=HI, stream=True))
    assert all(chunk.choices for chunk in chunks)  # no chunk of usage, which it did not ask for


def responses(endpoint: str) -> None:
    with openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0) as client:
        client.responses.create(model="q", input="Hi")


def messages(endpoint: str) -> None:
    url = endpoint.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        client.messages.create(model="q", messages=HI, max_tokens=9)


CALLS = [chat, chat_stream, responses, messages]


@pytest.fixture
async def run(
    serve: Any, backend: Any, models: ScriptedModels, store: Any, claim: AttemptedRollout
) -> Callable[..., Any]:
    """Return a function that runs work on the proxy's endpoint in a trace."""
    proxy = await serve(backend(models))
    ids: Any = {"rollout_id": claim.rollout_id, "attempt_id": claim.attempt.attempt_id}

    async def traced(work: Callable[[str], None], **options: Any) -> list[Span]:
        tracer = OtelTracer(**options)
        with tracer.lifespan(store):
            async with tracer.trace_context(**ids):
                with operation(name="step"):
                    await asyncio.to_thread(work, proxy.as_resource(**ids).endpoint)
        return list(await store.query_spans(claim.rollout_id))

    return traced


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_is_counted_once_with_the_proxys_token_ids(run: Any, call: Any):
    spans = await run(call)
    (proxied,) = [span for span in spans if span.name == semconv.SPAN_MODEL_CALL]
    (client,) = [span for span in spans if span.span_id == proxied.parent_id]
    assert client.attributes["gen_ai.response.id"] == proxied.attributes["gen_ai.response.id"]
    answer = {"role": "assistant", "content": "Hello there my friend"}
    ids = [token.id for token in Reply("Hello there my friend").tokens]
    (triplet,) = TracerTraceToTriplet().adapt(spans)
    assert triplet.response["token_ids"] == ids
    (proxy_triplet,) = LlmProxyTraceToTriplet().adapt(spans)
    assert proxy_triplet.response["token_ids"] == ids
    (row,) = TraceToTrajectory().adapt(spans)
    assert row.token_ids[row.prompt_length :] == ids
    (conversation,) = TraceToMessages().adapt(spans)
    assert conversation["messages"] == [*HI, answer]


@pytest.mark.parametrize("call", CALLS)
async def test_only_direct_calls_are_recorded_if_the_tracer_has_that_option(
    run: Any, models: ScriptedModels, call: Any
):
    def work(endpoint: str) -> None:
        call(endpoint)
        call(models.base_url)

    spans = await run(work, model_calls="direct")
    (proxied,) = [span for span in spans if span.name == semconv.SPAN_MODEL_CALL]
    (direct,) = [
        span for span in spans if span is not proxied and "gen_ai.request.model" in span.attributes
    ]
    (step,) = [span for span in spans if span.span_id == proxied.parent_id]
    assert step.attributes["agentlightning.operation.name"] == "step"
    assert (direct.parent_id, direct.trace_id) == (step.span_id, proxied.trace_id)
    assert len(TracerTraceToTriplet().adapt(spans)) == 2


@pytest.mark.parametrize("call", CALLS)
async def test_a_failed_call_is_counted_once(run: Any, models: ScriptedModels, call: Any):
    models.script = [Reply(error_status=400, error_message="too long")]

    def work(endpoint: str) -> None:
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)):
            call(endpoint)

    spans = await run(work)
    failed = [span for span in spans if "gen_ai.request.model" in span.attributes]
    assert [span.status.status_code for span in failed] == ["ERROR", "ERROR"]
    assert TracerTraceToTriplet().adapt(spans) == []  # nothing was answered
    (conversation,) = TraceToMessages().adapt(spans)
    assert conversation["messages"] == HI
