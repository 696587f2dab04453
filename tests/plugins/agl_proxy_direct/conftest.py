"""A scripted model server, a store, and a proxy between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from agl_core.types import AttemptedRollout, Span
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore

from .raw_backend import RawBackend

Backend = Callable[..., dict[str, Any]]
Serve = Callable[..., Any]


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with ScriptedModels([Reply("Hello there my friend")]) as server:
        yield server


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
async def claim(store: InMemoryLightningStore) -> AttemptedRollout:
    return await store.start_rollout(input={"task": 1})


@pytest.fixture
def backend() -> Backend:
    """Return a function that makes entries of a model list, with the name ``q``."""

    def entry(server: Any, model: str = "hosted_vllm/Q", **params: Any) -> dict[str, Any]:
        base = f"http://127.0.0.1:{server.port}"
        return {"model_name": "q", "litellm_params": {"model": model, "api_base": base, **params}}

    return entry


@pytest.fixture
async def serve(store: InMemoryLightningStore) -> AsyncIterator[Serve]:
    """Return a function that starts proxies; they stop at the end of the test."""
    running: list[DirectProxy] = []

    async def start(*entries: dict[str, Any], **options: Any) -> DirectProxy:
        proxy = DirectProxy(**{"store": store, "model_list": list(entries), **options})
        await proxy.start()
        running.append(proxy)
        return proxy

    yield start
    for proxy in running:
        if proxy.is_running():
            await proxy.stop()


@pytest.fixture
def spans(store: InMemoryLightningStore, claim: AttemptedRollout) -> Callable[..., Any]:
    """Return the spans of the attempt."""

    async def query(offset: int = 0) -> list[Span]:
        ids = (claim.rollout_id, claim.attempt.attempt_id)
        return list((await store.query_spans(*ids, offset=offset)).items)

    return query


@pytest.fixture
async def raw() -> AsyncIterator[RawBackend]:
    async with RawBackend().serve() as server:
        yield server


@pytest.fixture
def ask(serve: Any, backend: Any, raw: RawBackend, claim: AttemptedRollout) -> Callable[..., Any]:
    """Return a function that makes one call through a proxy: status, and body as bytes."""

    async def call(path: str, provider: str = "hosted_vllm/Q", **more: Any) -> tuple[int, bytes]:
        proxy = await serve(backend(raw, provider), num_retries=0)
        llm = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id)
        body: dict[str, Any] = {"model": "q", **more}
        if path == "/responses":
            body["input"] = "hi"
        else:
            body |= {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(llm.endpoint + path, json=body) as reply,
        ):
            return reply.status, await reply.read()

    return call
