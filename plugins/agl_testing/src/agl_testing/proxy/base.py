"""Base of the tests of proxies: a scripted model server, a store, and a proxy between them."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import aiohttp
import pytest

from agl_core.proxy import LLMProxy
from agl_core.types import LLM, AttemptedRollout, Span
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_testing.proxy.stores import TroubledStore
from agl_testing.suite import Suite

__all__ = [
    "ANSWER",
    "MESSAGES",
    "ProxyTests",
    "attempt_of",
    "backend",
    "chat",
    "post",
    "running",
    "soon",
    "spans_of",
]

MESSAGES = [{"role": "user", "content": "How are you?"}]
ANSWER = Reply("Fine, thank you all.")


class ProxyTests(Suite):
    """Base of the tests of proxies.

    The author supplies a fixture ``make_proxy``: a callable that takes ``model_list`` and ``store``
    and returns a proxy that is not started, on loopback. It may get a ``port`` as well; without
    one the proxy takes a free port.
    """

    suite_name = "proxy"
    FLAGS: ClassVar[dict[str, str]] = {
        "streaming": "the agent receives each piece of an answer without delay",
        "token_ids": "the span has the ids and log-probabilities that the backend can give",
        "routes": "completions, embeddings and the list of models are served, too",
        "translation": "an agent may speak Anthropic's protocol, or OpenAI's of responses, to a "
        "backend that speaks OpenAI's chat protocol",
        "balancing": "backends of one model share its calls; a call that fails at one of them is "
        "tried at another",
        "passthrough": "other calls below /v1 reach the backend unchanged",
    }

    @pytest.fixture
    def make_proxy(self) -> Callable[..., LLMProxy]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `make_proxy`")

    @pytest.fixture
    def proxy_store(self) -> TroubledStore:
        return TroubledStore()

    @pytest.fixture
    def models(self) -> Iterator[ScriptedModels]:
        with ScriptedModels([ANSWER]) as models:
            yield models

    @pytest.fixture
    def proxy(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ) -> LLMProxy:
        return make_proxy(model_list=[backend(models)], store=proxy_store)


def backend(models: ScriptedModels, name: str = "m", **params: Any) -> dict[str, Any]:
    """Return an entry of a model list for a scripted server."""
    where = {"model": f"hosted_vllm/{name}", "api_base": models.base_url}
    return {"model_name": name, "litellm_params": {**where, **params}}


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
    """Start an attempt; return it and the resource that its agent gets."""
    rollout = await store.start_rollout("task")
    return rollout, proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)


async def spans_of(store: InMemoryLightningStore, rollout: AttemptedRollout) -> list[Span]:
    return list(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))


@asynccontextmanager
async def post(base_url: str, path: str, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    body = {"model": "m", "messages": MESSAGES, **body}
    # aiohttp warns about large bodies that are not read from a file.
    data = io.BytesIO(json.dumps(body).encode())
    async with (
        aiohttp.ClientSession(headers={"content-type": "application/json"}) as session,
        session.post(base_url + path, data=data) as reply,
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
    # Not splitlines(): U+2028 ends no line of an event, and a JSON text may hold it as it is.
    lines = re.split(r"\r\n|\n|\r", raw)
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data:")]
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
    """Wait until a condition on the backend holds; return False after the timeout."""
    deadline = asyncio.get_running_loop().time() + timeout
    # The scripted server runs in a thread and has no event to wait for.
    while not condition() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return condition()
