"""Failing backends, agents that disconnect, and stores that are slow or down."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from agl_core.semconv import INFRASTRUCTURE_CODES, INFRASTRUCTURE_HEADER
from agl_core.types import AttemptedRollout
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_testing import FaultyRelay
from agl_testing.proxy import TroubledStore

from .raw_backend import RawBackend, http_response

CHAT: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": CHAT,
    "/responses": {"model": "q", "input": "hi"},
    "/messages": {**CHAT, "max_tokens": 9},
}
PATHS = sorted(BODIES)
Post = Callable[..., Awaitable[tuple[int, Any, dict[str, str]]]]


@pytest.fixture
async def post(claim: AttemptedRollout) -> AsyncIterator[Post]:
    """Send a call of the attempt; return status, body and headers."""
    async with aiohttp.ClientSession() as session:

        async def send(proxy: DirectProxy, path: str, **more: Any) -> Any:
            base = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id, "q").endpoint
            async with session.post(base + path, json={**BODIES[path], **more}) as reply:
                text = await reply.text()
                body = json.loads(text) if reply.content_type == "application/json" else text
                return reply.status, body, {k.lower(): v for k, v in reply.headers.items()}

        yield send


def message_of(body: Any, path: str) -> str:
    """Return the message of an error body, which must have the protocol's form."""
    if path == "/messages":
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["message"]


def reported(headers: dict[str, str]) -> str | None:
    """Return by which of the known codes the proxy says that it was not the agent's failure."""
    code = headers.get(INFRASTRUCTURE_HEADER)
    assert code is None or code in INFRASTRUCTURE_CODES
    return code


async def only(spans: Any) -> Any:
    (span,) = await spans()
    assert span.status.status_code == "ERROR"
    return span


# -- backends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_backend_that_refuses_connections(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels, path: str
):
    async with FaultyRelay(models.port) as relay:
        entry = backend(relay)
    proxy = await serve(entry)  # no server listens on this port now
    status, body, headers = await post(proxy, path)
    assert status == 502
    assert "refuses connections" in message_of(body, path)
    assert reported(headers) == "backend_unreachable"
    span = await only(spans)
    assert span.attributes["error.type"] == "backend_unreachable"
    assert span.attributes["http.response.status_code"] == 502
    assert "refuses connections" in span.status.description


@pytest.mark.parametrize("path", PATHS)
async def test_a_backend_that_times_out(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels, path: str
):
    models.script = [Reply("late", delay=30)]
    proxy = await serve(backend(models, timeout=0.2))
    for stream in (False, True):
        status, body, _ = await post(proxy, path, stream=stream)
        assert status == 504
        assert "did not answer in time" in message_of(body, path)
    assert [span.attributes["error.type"] for span in await spans()] == ["timeout", "timeout"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_backend_that_truncates_a_stream(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels, path: str
):
    models.script = [Reply("one two three four", drop_after=3)]
    proxy = await serve(backend(models))
    status, text, _ = await post(proxy, path, stream=True)
    assert status == 200
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    last = events[-1]
    assert "broke the connection" in last["error"]["message"]
    assert last.get("code", last["error"].get("code")) == "connection_broken"
    assert "connection_broken" in INFRASTRUCTURE_CODES
    assert last.get("type") == (None if path.startswith("/chat") else "error")
    assert not text.endswith("[DONE]\n\n")
    span = await only(spans)
    assert span.attributes["error.type"] == "connection_broken"
    said = json.loads(span.attributes["gen_ai.output.messages"])[0]["parts"]
    assert said == [{"type": "text", "content": "one two"}]
    assert len(span.attributes["response_token_ids"]) == 2


@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_a_client_keeps_what_a_truncated_stream_says(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, client: str
):
    """A runner finds it in the error that the agent's client raises."""
    library: Any = {"openai": openai, "anthropic": anthropic}[client]
    runner = pytest.importorskip("agl_runner.infrastructure")
    models.script = [Reply("one two three four", drop_after=3)]
    proxy = await serve(backend(models))
    base = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id, "q").endpoint
    if client == "openai":
        calls = library.AsyncOpenAI(base_url=base, api_key="x", max_retries=0).chat.completions
        more = {}
    else:
        base = base.removesuffix("/v1")
        calls = library.AsyncAnthropic(base_url=base, api_key="x", max_retries=0).messages
        more = {"max_tokens": 9}
    stream = await calls.create(**CHAT, stream=True, **more)
    with pytest.raises(library.APIError) as raised:
        async for _ in stream:
            pass
    assert runner.was_reported(raised.value) == "proxy"


@pytest.mark.parametrize("path", PATHS)
async def test_a_backend_that_sends_garbage(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels, path: str
):
    proxy = await serve(backend(models))
    garbage = [b"<html>oops</html>", b"data: {not json\n\n", b"[1, 2]", b""]
    for body in garbage:
        models.script = [Reply(garbage=body)]
        for stream in (False, True):
            status, told, _ = await post(proxy, path, stream=stream)
            if stream and b"not json" in body and path == "/chat/completions":
                continue  # an agent of the backend's protocol gets the event as it came
            assert status == 502
            assert "backend" in message_of(told, path)
    kinds = {span.attributes["error.type"] for span in await spans()}
    assert kinds == {"backend_garbage", "stream_cut"}
    assert len(await spans()) == 2 * len(garbage)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("provider", ["hosted_vllm/Q", "anthropic/Q"])
async def test_an_overloaded_backend(
    serve: Any,
    backend: Any,
    post: Post,
    spans: Any,
    models: ScriptedModels,
    path: str,
    provider: str,
):
    headers = {"retry-after": "7", "x-request-id": "r1"}
    models.script = [Reply(error_status=429, error_message="slow down", headers=headers)]
    proxy = await serve(backend(models, provider))
    status, body, sent = await post(proxy, path)
    assert status == 429
    assert body["error"]["message"] == "slow down"
    assert ("type" in body) == (path == "/messages")
    assert (sent["retry-after"], sent["x-request-id"]) == ("7", "r1")
    assert reported(sent) is None
    assert (await only(spans)).attributes["error.type"] == "backend_429"
    assert len(models.requests) == 1


async def test_a_backend_that_answers_after_the_end_of_the_attempt(
    serve: Any,
    backend: Any,
    post: Post,
    spans: Any,
    models: ScriptedModels,
    store: InMemoryLightningStore,
    claim: AttemptedRollout,
):
    models.script = [Reply("late", delay=0.3)]
    proxy = await serve(backend(models))
    call = asyncio.ensure_future(post(proxy, "/chat/completions"))
    await reached(models)
    await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="succeeded")
    assert (await call)[0] == 200
    (span,) = await spans()
    assert span.attributes["gen_ai.response.id"] == "scripted-0"
    rollout = await store.get_rollout_by_id(claim.rollout_id)
    assert rollout is not None and rollout.status == "succeeded"


async def reached(models: ScriptedModels, count: int = 1) -> None:
    async with asyncio.timeout(10):
        while len(models.requests) < count:
            await asyncio.sleep(0.005)


# -- several backends ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        Reply(error_status=503),
        Reply(error_status=429),
        Reply(drop_after=0),
        Reply(garbage=b"oops"),
        Reply("late", delay=30),
    ],
    ids=["503", "429", "cut", "garbage", "timeout"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_another_backend_takes_over_before_the_first_byte(
    serve: Any,
    backend: Any,
    post: Post,
    spans: Any,
    models: ScriptedModels,
    bad: Reply,
    stream: bool,
):
    with ScriptedModels([bad]) as broken:
        proxy = await serve(backend(broken, timeout=0.3), backend(models))
        for _ in range(2):
            status, body, _ = await post(proxy, "/chat/completions", stream=stream)
            assert status == 200, body
            assert "Hello" in str(body)
    found = await spans()
    assert [span.status.status_code for span in found] == ["OK", "OK"]
    assert found[0].attributes["agl.proxy.tries"] == 2
    assert found[1].attributes["agl.proxy.tries"] == 1  # the rollout stays on that backend
    assert found[0].attributes["agl.proxy.backend"] == models.base_url


async def test_no_retry_after_the_first_byte(
    serve: Any, backend: Any, post: Post, models: ScriptedModels
):
    with ScriptedModels([Reply("one two three", drop_after=2)]) as broken:
        proxy = await serve(backend(broken), backend(models))
        _, text, _ = await post(proxy, "/chat/completions", stream=True)
    assert "error" in text and "Hello" not in text
    assert models.requests == []


async def test_errors_of_the_agent_are_not_retried(
    serve: Any, backend: Any, post: Post, models: ScriptedModels
):
    with ScriptedModels([Reply(error_status=400, error_message="too long")]) as strict:
        proxy = await serve(backend(strict), backend(models))
        status, body, headers = await post(proxy, "/chat/completions")
    assert (status, body["error"]["message"]) == (400, "too long")
    assert reported(headers) is None
    assert models.requests == []


# -- agents that disconnect ------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_ends_with_its_agent(
    serve: Any,
    backend: Any,
    spans: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    stream: bool,
):
    models.script = [Reply("word " * 100, delay=0 if stream else 30, chunk_delay=0.05)]
    proxy = await serve(backend(models))
    base = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    async with aiohttp.ClientSession() as session:
        call = session.post(base + "/chat/completions", json={**CHAT, "stream": stream})
        if stream:
            async with call as reply:
                await reply.content.readline()
                reply.close()
        else:
            task = asyncio.ensure_future(call.__aenter__())
            await reached(models)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(10):
        while not models.disconnects or not await spans():
            await asyncio.sleep(0.005)
    span = await only(spans)
    assert span.attributes["error.type"] == "client_disconnected"
    assert ("gen_ai.output.messages" in span.attributes) == stream


async def test_a_stop_ends_calls_and_keeps_their_spans(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels
):
    models.script = [Reply("never", delay=60)]
    proxy = await serve(backend(models))
    call = asyncio.ensure_future(post(proxy, "/chat/completions"))
    await reached(models)
    assert await proxy.drain(0.05, abort=True) == 1
    status, body, headers = await call
    assert (status, headers["retry-after"]) == (503, "1")
    assert "drained" in message_of(body, "/chat/completions")
    assert reported(headers) == "aborted"
    await proxy.stop()
    assert (await only(spans)).attributes["error.type"] == "aborted"


async def test_an_abort_leaves_waiting_calls_in_the_queue(
    serve: Any, backend: Any, post: Post, models: ScriptedModels
):
    models.script = [Reply("never", delay=60), Reply("after all")]
    proxy = await serve(backend(models, max_parallel_requests=1))
    flying = asyncio.ensure_future(post(proxy, "/chat/completions"))
    await reached(models)
    waiting = [asyncio.ensure_future(post(proxy, "/chat/completions")) for _ in range(2)]
    async with asyncio.timeout(10):
        while proxy._app.balancer.waiting() < 2:
            await asyncio.sleep(0.005)
    assert await proxy.drain(0.05, abort=True) == 1
    assert (await flying)[0] == 503
    assert proxy._app.balancer.in_flight == 0, "it returns when the call has ended"
    await proxy.resume()
    assert [(await call)[0] for call in waiting] == [200, 200]


async def test_a_relayed_body_that_breaks_off_is_cut_off(
    serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout, spans: Any
):
    """An end of the body would make half of a file look whole."""

    def half(writer: asyncio.StreamWriter) -> None:
        writer.write(http_response(b"RIFF" * 10, "audio/wav", content_length="9000"))

    raw.answer = half
    proxy = await serve(backend(raw))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/audio/speech", json={"model": "q"}) as reply,
    ):
        assert reply.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()
    assert (await only(spans)).status.status_code == "ERROR"


# -- stores ----------------------------------------------------------------------------------------


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore()


async def test_the_span_is_stored_before_the_agent_has_its_answer(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels, store: TroubledStore
):
    store.delay = 0.15
    proxy = await serve(backend(models))
    cases = [(path, stream) for path in PATHS for stream in (False, True)]
    for count, (path, stream) in enumerate(cases, start=1):
        assert (await post(proxy, path, stream=stream))[0] == 200
        assert len(await spans()) == count  # at once, without a flush


async def test_calls_share_the_trips_to_a_slow_store(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels, store: TroubledStore
):
    store.delay = 0.1
    proxy = await serve(backend(models))
    began = time.monotonic()
    made = await asyncio.gather(*(post(proxy, "/chat/completions") for _ in range(50)))
    assert {status for status, _, _ in made} == {200}
    assert len(await spans()) == 50
    assert store.batches < 15
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("path", PATHS)
async def test_a_store_that_is_gone_and_comes_back(
    serve: Any,
    backend: Any,
    post: Post,
    spans: Any,
    models: ScriptedModels,
    store: TroubledStore,
    path: str,
    caplog: pytest.LogCaptureFixture,
):
    proxy = await serve(backend(models), flush_timeout=0.2)
    store.gone = True
    assert (await post(proxy, path))[0] == 200  # the call succeeded; its span waits
    asked = len(models.requests)
    await asyncio.sleep(0.2)  # longer than flush_timeout, so the proxy refuses calls
    status, body, headers = await post(proxy, path)
    assert (status, headers["retry-after"]) == (503, "1")
    assert "the server does not answer" in message_of(body, path)
    assert reported(headers) == "store_unavailable"
    assert len(models.requests) == asked, "a call that cannot be recorded is not made"
    assert await spans() == []
    store.gone = False
    await proxy.flush()
    (span,) = await spans()
    assert span.status.status_code == "OK"
    assert (await post(proxy, path))[0] == 200
    assert len(await spans()) == 2
    assert "does not accept spans" in caplog.text


async def test_a_full_spool_holds_back_new_calls(
    serve: Any, backend: Any, post: Post, spans: Any, models: ScriptedModels, store: TroubledStore
):
    proxy = await serve(backend(models), flush_timeout=0.5, max_spooled_spans=3)
    store.gone = True
    first = await asyncio.gather(*(post(proxy, "/chat/completions") for _ in range(3)))
    assert [status for status, _, _ in first] == [200, 200, 200]
    assert (await post(proxy, "/chat/completions"))[0] == 503
    waiting = asyncio.ensure_future(post(proxy, "/chat/completions"))
    store.gone = False
    await proxy.flush()
    assert (await waiting)[0] in (200, 503)
    assert len(await spans()) >= 3


async def test_spans_that_a_stop_cannot_store_are_logged(
    serve: Any,
    backend: Any,
    post: Post,
    models: ScriptedModels,
    store: TroubledStore,
    caplog: pytest.LogCaptureFixture,
):
    proxy = await serve(backend(models), flush_timeout=0.1, stop_timeout=0.2)
    store.gone = True
    await post(proxy, "/chat/completions")
    with caplog.at_level(logging.ERROR):
        await proxy.stop()
    assert "1 spans of model calls are lost" in caplog.text


async def test_spans_of_unknown_attempts_do_not_hold_up_the_others(
    serve: Any,
    backend: Any,
    post: Post,
    spans: Any,
    models: ScriptedModels,
    caplog: pytest.LogCaptureFixture,
):
    proxy = await serve(backend(models))
    url = proxy.base_url.replace("/v1", "/rollout/ro-no/attempt/at-no/v1/chat/completions")
    async with aiohttp.ClientSession() as session:

        async def foreign() -> int:
            async with session.post(url, json=CHAT) as reply:
                return reply.status

        calls = [post(proxy, "/chat/completions") for _ in range(5)]
        await asyncio.gather(*calls, *(foreign() for _ in range(5)))
    assert len(await spans()) == 5
    refused = re.findall(r"the store refuses (\d+) spans", caplog.text)
    assert sum(map(int, refused)) == 5
