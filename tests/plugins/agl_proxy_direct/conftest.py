"""A scripted model server, a store, and a proxy between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agl_core.types import AttemptedRollout, Span
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore

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
