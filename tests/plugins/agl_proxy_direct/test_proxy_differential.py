"""What a program sees of odd streams: directly, and through the proxy, in every protocol."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agl_proxy_direct import DirectProxy
from agl_store_memory import InMemoryLightningStore

from .odd_streams import STREAMS, Intended, answers, broken

TRANSLATED = ("chat", "responses", "messages")
PROTOCOLS = (*TRANSLATED, "completions")
PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
FEW = settings(max_examples=15, deadline=None, suppress_health_check=PATIENT)
MANY = settings(max_examples=1000, deadline=None, suppress_health_check=PATIENT)
VLLMS = ("chat", "completions")
HI: list[Any] = [{"role": "user", "content": "hi"}]


class Bench:
    """A server that sends one prepared stream, and a proxy before it, in threads of their own."""

    def __init__(self) -> None:
        self.stream = b""
        bench = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(bench.stream)))
                self.end_headers()
                self.wfile.write(bench.stream)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.direct = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.store = InMemoryLightningStore()
        entries = [
            {
                "model_name": name,
                "litellm_params": {
                    # Extra fields are requested of vLLM alone.
                    "model": f"{'hosted_vllm' if name in VLLMS else 'openai'}/m",
                    "api_base": f"{self.direct}/v1",
                    "api_key": "sk-upstream-1234",
                    "protocols": [name],
                },
            }
            for name in PROTOCOLS
        ]
        self.proxy = DirectProxy(store=self.store, model_list=entries)
        self.run(self.proxy.start())
        rollout = self.run(self.store.start_rollout(input="q"))
        self.rollout_id = rollout.rollout_id
        llm = self.proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, model="chat")
        self.proxied = llm.endpoint.removesuffix("/v1")

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.run(self.proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for client in (openai_client, anthropic_client):
            for base in (self.direct, self.proxied):
                client(base).close()
            client.cache_clear()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


# -- programs --------------------------------------------------------------------------------------


@cache
def openai_client(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0, timeout=20)


@cache
def anthropic_client(base: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base, api_key="k", max_retries=0, timeout=20)


def events_of(stream: Any) -> list[Any]:
    """Return the events of a stream, and the error that it ends with."""
    events: list[Any] = []
    try:
        # Events before an error are kept.
        events.extend(event.model_dump(warnings=False) for event in stream)
    except (openai.APIError, anthropic.APIError) as error:
        events.append((type(error), str(error)))
    return events


def without_extra(events: list[Any]) -> list[Any]:
    """Return events without the listed differences (docs/proxy.md).

    The proxy asks for usage and log-probabilities, and removes them. Servers send them only if
    asked; those of a server that sends them unasked are lost.
    """
    kept: list[Any] = []
    for event in events:
        if isinstance(event, dict):
            for choice in event["choices"] or ():
                choice["logprobs"] = None
            if not event["choices"] and event["usage"]:
                continue
        kept.append(event)
    return kept


def chat_events(base: str, model: str) -> list[Any]:
    stream = openai_client(base).chat.completions.create(model=model, messages=HI, stream=True)
    return without_extra(events_of(stream))


def completions_events(base: str, model: str) -> list[Any]:
    stream = openai_client(base).completions.create(model=model, prompt="hi", stream=True)
    return without_extra(events_of(stream))


def responses_events(base: str, model: str) -> list[Any]:
    return events_of(openai_client(base).responses.create(model=model, input="hi", stream=True))


def messages_events(base: str, model: str) -> list[Any]:
    options: Any = {"model": model, "max_tokens": 9, "messages": HI, "stream": True}
    return events_of(anthropic_client(base).messages.create(**options))


EVENTS = {
    "chat": chat_events,
    "completions": completions_events,
    "responses": responses_events,
    "messages": messages_events,
}


def chat_answer(base: str, model: str) -> Intended:
    text: list[str] = []
    thoughts: list[str] = []
    calls: dict[int, list[str]] = {}
    for event in chat_events(base, model):
        for choice in event["choices"]:
            text.append(choice["delta"]["content"] or "")
            thoughts.append(choice["delta"].get("reasoning_content") or "")
            for call in choice["delta"]["tool_calls"] or ():
                known = calls.setdefault(call["index"], ["", ""])
                known[0] = call["function"]["name"] or known[0]
                known[1] += call["function"]["arguments"] or ""
            if choice["finish_reason"]:
                assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    made = [(name, json.loads(given)) for _, (name, given) in sorted(calls.items())]
    return Intended("".join(text), tuple(made), "".join(thoughts))


def responses_answer(base: str, model: str) -> Intended:
    with openai_client(base).responses.stream(model=model, input="hi") as stream:
        made = stream.get_final_response()
    assert made.status == "completed"
    calls = [
        (item.name, json.loads(item.arguments))
        for item in made.output
        if item.type == "function_call"
    ]
    thoughts = [item.content or [] for item in made.output if item.type == "reasoning"]
    reasoning = "".join(part.text for parts in thoughts for part in parts)
    return Intended(made.output_text, tuple(calls), reasoning)


def messages_answer(base: str, model: str) -> Intended:
    options: Any = {"model": model, "max_tokens": 9, "messages": HI}
    with anthropic_client(base).messages.stream(**options) as stream:
        made = stream.get_final_message()
    blocks: list[Any] = made.content
    calls = [(block.name, block.input) for block in blocks if block.type == "tool_use"]
    text = "".join(block.text for block in blocks if block.type == "text")
    assert made.stop_reason == ("tool_use" if calls else "end_turn")
    thoughts = "".join(block.thinking for block in blocks if block.type == "thinking")
    return Intended(text, tuple(calls), thoughts)


ANSWERS = {"chat": chat_answer, "responses": responses_answer, "messages": messages_answer}


def outcome(program: Callable[[str, str], list[Any]], base: str, model: str) -> Any:
    """Return what a program sees: its events, or the type of the error it gets."""
    try:
        return program(base, model)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return type(error)


def check_same(bench: Bench, protocol: str, data: st.DataObject) -> None:
    answer = data.draw(answers)
    bench.stream = data.draw(broken(data.draw(STREAMS[protocol](answer)), protocol))
    program = EVENTS[protocol]
    assert outcome(program, bench.proxied, protocol) == outcome(program, bench.direct, protocol)


def check_translated(bench: Bench, agent: str, backend: str, data: st.DataObject) -> None:
    answer = data.draw(answers)
    bench.stream = data.draw(STREAMS[backend](answer))
    assert ANSWERS[agent](bench.proxied, backend) == answer


PAIRS = [(agent, backend) for agent in TRANSLATED for backend in TRANSLATED if agent != backend]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_program_sees_the_stream_as_without_the_proxy(bench: Bench, protocol: str):
    @FEW
    @given(st.data())
    def check(data: st.DataObject) -> None:
        check_same(bench, protocol, data)

    check()


@pytest.mark.parametrize(("agent", "backend"), PAIRS)
def test_a_program_of_another_protocol_sees_the_answer(bench: Bench, agent: str, backend: str):
    @FEW
    @given(st.data())
    def check(data: st.DataObject) -> None:
        check_translated(bench, agent, backend, data)

    check()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_thousand_streams_are_as_without_the_proxy(bench: Bench, protocol: str):
    @MANY
    @given(st.data())
    def check(data: st.DataObject) -> None:
        check_same(bench, protocol, data)

    check()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("agent", "backend"), PAIRS)
def test_a_thousand_streams_reach_programs_of_another_protocol(
    bench: Bench, agent: str, backend: str
):
    @MANY
    @given(st.data())
    def check(data: st.DataObject) -> None:
        check_translated(bench, agent, backend, data)

    check()
