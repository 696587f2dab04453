"""The AgentOps tracer: the spans that it records, and the objects that it must not change."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import agentops
import anthropic
import httpx
import openai
import pytest
from agentops.sdk.core import tracer as sdk_tracer
from pydantic import BaseModel
from traced_work import (
    HI,
    STREAMS,
    async_stream,
    call_then_change_all,
    spans_of,
    stream_and_change_all,
    sync,
)

from agl_adapters import TracerTraceToTriplet, TraceToMessages
from agl_core.emitter import emit_message
from agl_core.errors import StoreUnavailableError, TracerError
from agl_core.types import Span
from agl_scripted import Reply, ToolCall, prompt_tokens
from agl_store_memory import InMemoryLightningStore
from agl_tracer_agentops import AgentOpsTracer

CALL = ToolCall("look", {"at": "it"})
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


async def traced(work: Any, **options: Any) -> list[Span]:
    return await spans_of(AgentOpsTracer(**options), work)


def calls(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.name == "openai.chat.completion"]


def raw(client, models):
    answer = client.chat.completions.with_raw_response.create(model="m", messages=HI)
    assert answer.headers["content-type"] == "application/json"
    assert answer.parse().choices[0].message.content == "Hello there."


def stream(client, models):
    with client.chat.completions.create(model="m", messages=HI, stream=True) as chunks:
        assert isinstance(chunks, openai.Stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello there."


def raw_stream(client, models):
    answer = client.chat.completions.with_raw_response.create(model="m", messages=HI, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in answer.parse()) == "Hello there."


def helper(client, models):
    with client.chat.completions.stream(model="m", messages=HI) as events:
        assert events.get_final_completion().choices[0].message.content == "Hello there."


@pytest.mark.parametrize("work", [sync, raw, stream, raw_stream, async_stream, helper])
async def test_token_ids_and_logprobs_are_on_the_span(models, client, work):
    spans = await traced(lambda: work(client, models))
    (call,) = calls(spans)
    reply = Reply("Hello there.")
    attributes = call.attributes
    assert attributes["prompt_token_ids"] == [t.id for t in prompt_tokens({"messages": HI})]
    assert attributes["response_token_ids"] == [token.id for token in reply.tokens]
    logprobs = json.loads(str(attributes["logprobs.content"]))
    assert [entry["logprob"] for entry in logprobs] == [token.logprob for token in reply.tokens]
    assert attributes["gen_ai.completion.0.content"] == "Hello there."
    assert attributes["gen_ai.response.id"] == "scripted-0"
    assert call.status.status_code == "OK"
    (session,) = [span for span in spans if span.parent_id is None]
    assert session.name == "trial.session" and call.parent_id == session.span_id


async def test_structured_answers_are_recorded(models, client):
    class Answer(BaseModel):
        x: int

    models.script = [Reply('{"x": 3}')]

    def work() -> None:
        parsed = client.chat.completions.parse(model="m", messages=HI, response_format=Answer)
        assert parsed.choices[0].message.parsed == Answer(x=3)

    (call,) = calls(await traced(work))
    assert call.attributes["gen_ai.completion.0.content"] == '{"x": 3}'
    assert call.attributes["response_token_ids"] == [t.id for t in Reply('{"x": 3}').tokens]


async def test_keys_and_passwords_are_redacted(models, client):
    body = {"api_key": "sk-1", "langfuse": {"secret": "sk-2", "trace": "t"}}

    def work() -> None:
        client.chat.completions.create(model="m", messages=HI, extra_body=body)

    (call,) = calls(await traced(work))
    assert call.attributes["gen_ai.request.api_key"] == "[redacted]"
    assert json.loads(str(call.attributes["gen_ai.request.langfuse"])) == {
        "secret": "[redacted]",
        "trace": "t",
    }


@pytest.mark.parametrize("streamed", [False, True])
async def test_tool_calls_are_children_and_part_of_the_answer(models, client, streamed):
    models.script = [Reply(tool_calls=[CALL])]
    asked = {"model": "m", "messages": HI, "tools": [TOOL], "stream": streamed}
    spans = await traced(lambda: list(client.chat.completions.create(**asked)))
    (tool,) = [span for span in spans if span.name == "tool_call.look"]
    assert tool.parent_id == calls(spans)[0].span_id
    (conversation,) = TraceToMessages().adapt(spans)
    assert conversation["messages"][-1]["tool_calls"] == [  # type: ignore[typeddict-item]
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "look", "arguments": '{"at": "it"}'},
        }
    ]


@pytest.mark.parametrize("read", STREAMS)
async def test_streams_of_other_protocols_keep_calls_of_tools(models, read):
    models.script = [Reply(tool_calls=[CALL])]
    spans = await traced(lambda: read(models))
    (tool,) = [span for span in spans if span.name == "tool_call.look"]
    (conversation,) = TraceToMessages().adapt(spans)
    (asked,) = conversation["messages"][-1]["tool_calls"]  # type: ignore[typeddict-item]
    assert asked["id"] == tool.attributes["tool.call.id"]
    assert asked["function"]["name"] == "look"
    assert json.loads(asked["function"]["arguments"]) == {"at": "it"}


@pytest.mark.parametrize("work", [call_then_change_all, stream_and_change_all])
async def test_later_changes_by_the_agent_do_not_affect_the_span(models, client, work):
    """A span is built after the call from copies that were made at the call."""

    (call,) = calls(await traced(lambda: work(client)))
    attributes = call.attributes
    assert attributes["gen_ai.prompt.0.content"] == "Hi"
    assert "gen_ai.prompt.1.content" not in attributes
    assert attributes["gen_ai.completion.0.content"] == "Hello there."
    tokens = Reply("Hello there.").tokens
    assert attributes["response_token_ids"] == [token.id for token in tokens]
    logprobs = json.loads(str(attributes["logprobs.content"]))
    assert logprobs[0]["logprob"] == tokens[0].logprob


async def test_errors_and_broken_streams_reach_the_agent_and_the_span(models, client):
    def work() -> None:
        models.script = [Reply(error_status=429)]
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=HI)
        models.script = [Reply("a b c d e", drop_after=3)]
        with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
            list(client.chat.completions.create(model="m", messages=HI, stream=True))
        models.script = [Reply("a b c")]
        next(iter(half := client.chat.completions.create(model="m", messages=HI, stream=True)))
        half.close()

    failed, broken, left = calls(await traced(work))
    assert [span.status.status_code for span in (failed, broken, left)] == ["ERROR", "ERROR", "OK"]
    assert broken.attributes["gen_ai.completion.0.content"] == "a b"
    assert "gen_ai.completion.0.content" not in failed.attributes


async def test_an_anthropic_stream_is_read_by_the_agent_only(models):
    def work() -> None:
        with anthropic.Anthropic(base_url=models.url, api_key="none") as client:
            events = client.messages.create(model="m", messages=HI, max_tokens=9, stream=True)
            kinds = [event.type for event in events]
            assert kinds[0] == "message_start" and kinds[-1] == "message_stop"

    (conversation,) = TraceToMessages().adapt(await traced(work))
    assert [message.get("content") for message in conversation["messages"]] == [
        "Hi",
        "Hello there.",
    ]


async def test_a_helper_that_cannot_open_its_stream_ends_the_span(models):
    models.script = [Reply(error_status=400)]

    def work() -> None:
        with (
            anthropic.Anthropic(base_url=models.url, api_key="none") as client,
            pytest.raises(anthropic.BadRequestError),
            client.messages.stream(model="m", messages=HI, max_tokens=9),
        ):
            raise AssertionError("it is not entered")

    # The client makes its own span, without the messages.
    (call,) = [s for s in await traced(work) if "gen_ai.prompt.0.content" in s.attributes]
    assert call.attributes["gen_ai.request.streaming"] is True
    assert call.status.status_code == "ERROR"


async def test_the_sdk_is_set_up_for_the_agent_and_its_service_is_not_called(models, client):
    threads = set(threading.enumerate())

    @agentops.agent(name="planner")
    class Planner:
        @agentops.operation
        def plan(self) -> None:
            client.chat.completions.create(model="m", messages=HI)

    def work() -> None:
        agentops.init(api_key="real-key")
        Planner().plan()

    spans = await traced(work)
    adapter = TracerTraceToTriplet(repair_hierarchy=False)
    assert [triplet.response["token_ids"] for triplet in adapter.adapt(spans)] != [[]]
    assert calls(spans)[0].parent_id in {s.span_id for s in spans if "plan" in s.name}
    assert not sdk_tracer.initialized and not agentops.get_client().initialized
    assert {t for t in threading.enumerate() if t not in threads and not t.daemon} == set()


async def test_the_applications_own_setup_is_respected(monkeypatch: pytest.MonkeyPatch, models):
    monkeypatch.setattr(sdk_tracer, "_initialized", True)
    with pytest.raises(TracerError, match="agentops_managed=False"):
        AgentOpsTracer().init_worker(0)
    spans = await traced(lambda: emit_message("x"), agentops_managed=False)
    assert "agentlightning.message" in {span.name for span in spans}
    assert sdk_tracer.initialized


def test_workers_that_are_set_up_at_once_are_torn_down_one_by_one(monkeypatch: pytest.MonkeyPatch):
    both = threading.Barrier(2)
    users: list[object] = []

    @contextmanager
    def sdk(*_: Any) -> Iterator[Any]:
        both.wait(10)
        users.append(sdk)
        yield
        users.pop()

    monkeypatch.setattr("agl_tracer_agentops.tracer.local_sdk", sdk)
    tracer = AgentOpsTracer(instrument_managed=False)
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


async def test_a_store_that_is_down_slows_the_agent_by_the_buffer_only(models, client):
    class DownStore(InMemoryLightningStore):
        async def add_many_spans(self, spans: Any) -> Any:
            raise StoreUnavailableError("down")

    tracer = AgentOpsTracer(max_buffered=10, max_wait=0.5, flush_timeout=0.2)
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
                client.chat.completions.create(model="m", messages=HI)
                took.append(time.monotonic() - start)

    with tracer.lifespan(store), pytest.raises(StoreUnavailableError):
        await attempt()
    assert len(took) == 30  # the agent finished
    waits = [seconds for seconds in took if seconds > 0.4]
    assert len(waits) <= 1  # waited once, and then gave the trace up
