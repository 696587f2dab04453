"""The Weave tracer: the spans that it records, and the objects that it must not change."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
import weave
from traced_work import (
    HI,
    STREAMS,
    async_stream,
    call_then_change_all,
    spans_of,
    stream_and_change_all,
    sync,
)
from weave.trace.context import weave_client_context

from agl_adapters import TracerTraceToTriplet, TraceToMessages
from agl_core import semconv
from agl_core.emitter import emit_message
from agl_core.errors import StoreUnavailableError, TracerError
from agl_core.types import Span
from agl_scripted import Reply, ToolCall, prompt_tokens
from agl_store_memory import InMemoryLightningStore
from agl_tracer_weave import WeaveTracer

TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"properties": {"at": {"enum": [1, "it"]}}}},
}
IN, OUT = semconv.OPERATION_INPUT, semconv.OPERATION_OUTPUT
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


async def traced(work: Any, **options: Any) -> list[Span]:
    return await spans_of(WeaveTracer(**options), work)


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def calls(spans: list[Span]) -> list[Span]:
    return named(spans, "openai.chat.completions.create")


def stream(client, models):
    chunks = client.chat.completions.create(model="m", messages=HI, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello there."


@pytest.mark.parametrize("work", [sync, stream, async_stream])
async def test_token_ids_and_logprobs_are_on_the_span(models, client, work):
    spans = await traced(lambda: work(client, models))
    (call,) = calls(spans)
    reply = Reply("Hello there.")
    attributes = call.attributes
    assert attributes[f"{OUT}.prompt_token_ids"] == [
        token.id for token in prompt_tokens({"messages": HI})
    ]
    assert attributes[f"{OUT}.choices.0.token_ids"] == [token.id for token in reply.tokens]
    logprobs = json.loads(str(attributes[f"{OUT}.choices.0.logprobs.content"]))
    assert [entry["logprob"] for entry in logprobs] == [token.logprob for token in reply.tokens]
    assert attributes[f"{OUT}.choices.0.message.content"] == "Hello there."
    assert attributes[f"{IN}.messages.0.content"] == "Hi"
    (triplet,) = TracerTraceToTriplet().adapt(spans)
    assert triplet.response["token_ids"] == [token.id for token in reply.tokens]
    (root,) = [span for span in spans if span.parent_id is None]
    assert root.name == "trial" and call.parent_id == root.span_id
    assert root.attributes[f"{IN}.rollout_id"] == call.rollout_id


async def test_tools_and_their_calls_are_part_of_the_conversation(models, client):
    models.script = [Reply(tool_calls=[ToolCall("look", {"at": "it"})])]
    spans = await traced(
        lambda: client.chat.completions.create(model="m", messages=HI, tools=[TOOL])
    )
    (call,) = calls(spans)
    assert json.loads(str(call.attributes[f"{IN}.tools"])) == [TOOL]
    (conversation,) = TraceToMessages().adapt(spans)
    (asked,) = conversation["messages"][-1]["tool_calls"]  # type: ignore[typeddict-item]
    assert asked["function"] == {"name": "look", "arguments": '{"at": "it"}'}


@pytest.mark.parametrize("read", STREAMS)
async def test_streams_of_other_protocols_keep_calls_of_tools(models, read):
    models.script = [Reply(tool_calls=[ToolCall("look", {"at": "it"})])]
    spans = await traced(lambda: read(models))
    (conversation,) = TraceToMessages().adapt(spans)
    (asked,) = conversation["messages"][-1]["tool_calls"]  # type: ignore[typeddict-item]
    assert asked["function"]["name"] == "look"
    assert json.loads(asked["function"]["arguments"]) == {"at": "it"}


@pytest.mark.parametrize("work", [call_then_change_all, stream_and_change_all])
async def test_later_changes_by_the_agent_do_not_affect_the_span(models, client, work):
    """A span is built after the call from copies that were made at the call."""

    (call,) = calls(await traced(lambda: work(client)))
    attributes = call.attributes
    assert attributes[f"{IN}.messages.0.content"] == "Hi"
    assert f"{IN}.messages.1.content" not in attributes
    assert attributes[f"{OUT}.choices.0.message.content"] == "Hello there."
    tokens = Reply("Hello there.").tokens
    assert attributes[f"{OUT}.choices.0.token_ids"] == [token.id for token in tokens]
    logprobs = json.loads(str(attributes[f"{OUT}.choices.0.logprobs.content"]))
    assert logprobs[0]["logprob"] == tokens[0].logprob


async def test_requests_to_openai_have_no_fields_that_the_agent_did_not_set(models):
    """Weave's own patch would request the usage of a stream: a chunk without choices."""
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        url = f"{models.base_url}/chat/completions"
        reply = httpx.post(url, content=request.content, headers={"authorization": "Bearer none"})
        return httpx.Response(200, content=reply.content, headers=reply.headers)

    http_client = httpx.Client(transport=httpx.MockTransport(answer))
    client = openai.OpenAI(api_key="none", http_client=http_client)
    assert client.base_url.host == "api.openai.com"
    (call,) = calls(await traced(lambda: stream(client, models)))
    assert [set(request) for request in asked] == [{"model", "messages", "stream"}]
    assert call.attributes[f"{OUT}.choices.0.message.content"] == "Hello there."


@dataclasses.dataclass
class Settings:
    api_key: str
    size: int


async def test_ops_nest_and_their_values_become_attributes():
    @weave.op
    def inner(settings: Settings, headers: dict[str, str], mixed: list[Any]) -> dict[str, Any]:
        emit_message("between")
        mixed.append("changed by the agent")
        return {"sizes": [1, 2], "mixed": [1, "a"], "nested": {"deep": None, "flag": True}}

    @weave.op(name="outer")
    async def outer() -> str:
        inner(Settings("secret", 3), {"Authorization": "secret", "x-api-key": "secret"}, [1, "a"])
        return "done"

    spans = await traced(outer)
    (above,), (within,) = named(spans, "outer"), named(spans, "inner")
    (message,) = named(spans, "agentlightning.message")
    assert within.parent_id == above.span_id and message.parent_id == within.span_id
    assert above.attributes[OUT] == "done"
    attributes = within.attributes
    assert attributes[semconv.OPERATION_NAME] == "inner"
    assert attributes[semconv.TRACER_NAME] == "weave"
    assert attributes[f"{IN}.settings.size"] == 3
    assert attributes[f"{IN}.settings.api_key"] == "REDACTED"
    assert attributes[f"{IN}.headers.Authorization"] == "REDACTED"
    assert attributes[f"{IN}.headers.x-api-key"] == "[redacted]"
    assert attributes[f"{IN}.mixed"] == '[1, "a"]'
    assert attributes[f"{OUT}.sizes"] == [1, 2] and attributes[f"{OUT}.mixed"] == '[1, "a"]'
    assert attributes[f"{OUT}.nested.flag"] is True


async def test_the_agent_reads_its_iterators_and_streams_itself(models, client):
    @weave.op
    def join(parts: Any) -> str:
        return "".join(parts)

    @weave.op
    def read(chunks: Any) -> str:
        return "".join(c.choices[0].delta.content or "" for c in chunks)

    @weave.op
    def numbers() -> Any:
        return map(str, [1, 2])

    def work() -> None:
        assert join(part for part in "abc") == "abc"
        assert join(io.StringIO("d\n")) == "d\n"
        assert list(numbers()) == ["1", "2"]
        assert read(client.chat.completions.create(model="m", messages=HI, stream=True)) == (
            "Hello there."
        )

    spans = await traced(work)
    (call,) = calls(spans)
    assert call.attributes[f"{OUT}.choices.0.message.content"] == "Hello there."
    assert [span.attributes[OUT] for span in named(spans, "join")] == ["abc", "d\n"]


async def test_errors_and_broken_streams_reach_the_agent_and_the_span(models, client):
    def work() -> None:
        models.script = [Reply(error_status=429)]
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=HI)
        models.script = [Reply("a b c")]
        chunks = client.chat.completions.create(model="m", messages=HI, stream=True)
        assert [c.choices[0].delta.content for c, _ in zip(chunks, range(3), strict=False)]
        chunks.close()

    failed, left = calls(await traced(work))
    assert failed.status.status_code == "ERROR"
    assert "429" in str(failed.attributes["exception.message"])
    assert [event.name for event in failed.events] == ["exception"]
    assert f"{OUT}.choices.0.message.content" not in failed.attributes
    assert left.status.status_code != "ERROR"
    assert left.attributes[f"{IN}.stream"] is True


async def test_an_error_of_the_agent_is_the_root_calls_too():
    @weave.op
    def fails() -> None:
        raise ValueError("no luck")

    store = InMemoryLightningStore()
    tracer = WeaveTracer()
    with tracer.lifespan(store):
        rollout = await store.start_rollout("task")
        with pytest.raises(ValueError, match="no luck"):
            async with tracer.trace_context(
                "trial", rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
            ):
                fails()
    spans = list(await store.query_spans(rollout.rollout_id))
    assert {span.name: span.status.status_code for span in spans} == {
        "fails": "ERROR",
        "trial": "ERROR",
    }
    assert [span.attributes["exception.message"] for span in spans] == ["no luck", "no luck"]


async def test_a_call_whose_output_cannot_be_described_ends():
    @weave.op(postprocess_output=lambda output: output["missing"])
    def odd() -> dict[str, int]:
        return {"a": 1}

    @weave.op
    def after() -> None: ...

    def work() -> None:
        assert odd() == {"a": 1}
        after()

    spans = await traced(work)
    (root,) = named(spans, "trial")
    assert {span.name: span.parent_id for span in spans if span is not root} == {
        "odd": root.span_id,
        "after": root.span_id,
    }


async def test_a_cancelled_call_ends_and_later_spans_are_not_below_it(models):
    @weave.op
    async def waits() -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        async with openai.AsyncOpenAI(base_url=models.base_url, api_key="none") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await client.chat.completions.create(model="m", messages=HI)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await waits()
        emit_message("after")

    spans = await traced(work)
    (root,) = named(spans, "trial")
    (call,), (cancelled,) = calls(spans), named(spans, "waits")
    (after,) = named(spans, "agentlightning.message")
    assert call.status.status_code == cancelled.status.status_code == "ERROR"
    assert [span.parent_id for span in (call, cancelled, after)] == [root.span_id] * 3


async def test_a_call_that_is_still_open_at_the_end_of_the_trace_is_recorded(models, client):
    unread: list[Any] = []

    def work() -> None:
        unread.append(client.chat.completions.create(model="m", messages=HI, stream=True))
        next(unread[0])

    (call,) = calls(await traced(work))
    assert call.attributes[f"{IN}.messages.0.content"] == "Hi"
    unread[0].close()


async def test_published_objects_stay_local_and_reads_of_the_service_raise(models, client):
    published: list[str] = []

    def work() -> None:
        published.append(weave.publish({"a": 1}, name="thing").digest)
        with pytest.raises(TracerError, match="keeps calls local"):
            weave_client_context.require_weave_client().server.calls_delete()

    await traced(work)
    assert published and published[0]
    assert weave_client_context.get_weave_client() is None


def test_workers_that_are_set_up_at_once_are_torn_down_one_by_one(monkeypatch: pytest.MonkeyPatch):
    both = threading.Barrier(2)
    users: list[object] = []

    @contextmanager
    def sdk(*_: Any) -> Iterator[Any]:
        both.wait(10)
        users.append(sdk)
        yield
        users.pop()

    monkeypatch.setattr("agl_tracer_weave.tracer.local_client", sdk)
    tracer = WeaveTracer(instrument_managed=False)
    tracer.init()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(tracer.init_worker, range(2)))
    left: list[int] = []
    for worker_id in range(2):
        tracer.teardown_worker(worker_id)
        left.append(len(users))
    assert left == [1, 0]


async def test_libraries_can_be_left_alone(models, client):
    def work() -> None:
        client.chat.completions.create(model="m", messages=HI)

    assert calls(await traced(work, instrument_managed=False)) == []


async def test_a_client_of_the_applications_is_respected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weave_client_context, "get_weave_client", object)
    with pytest.raises(TracerError, match=r"weave\.init"):
        WeaveTracer().init_worker(0)


async def test_a_store_that_is_down_slows_the_agent_by_the_buffer_only():
    class DownStore(InMemoryLightningStore):
        async def add_many_spans(self, spans: Any) -> Any:
            raise StoreUnavailableError("down")

    @weave.op
    def step() -> None: ...

    tracer = WeaveTracer(max_buffered=10, max_wait=0.5, flush_timeout=0.2)
    store = DownStore()
    took: list[float] = []

    async def attempt() -> None:
        rollout = await store.start_rollout("task")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }
        async with tracer.trace_context(**ids):
            for _ in range(30):
                start = time.monotonic()
                step()
                took.append(time.monotonic() - start)

    with tracer.lifespan(store), pytest.raises(StoreUnavailableError):
        await attempt()
    assert len(took) == 30  # the agent finished
    waits = [seconds for seconds in took if seconds > 0.4]
    assert len(waits) <= 1  # waited once, and then gave the trace up
