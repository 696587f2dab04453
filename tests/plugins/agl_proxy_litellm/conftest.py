"""A scripted model server, a store, and the direct or the LiteLLM proxy between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agl_core.types import AttemptedRollout, Span
from agl_proxy_direct import DirectProxy
from agl_proxy_litellm import LiteLLMProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore

LITELLM_OWN = (
    # Pydantic warns about the types of LiteLLM's messages at the first stream.
    r"ignore:Items? .* on TypedDict class:UserWarning",
    # LiteLLM creates coroutines in a thread; one whose caller was cancelled is never awaited.
    r"ignore:coroutine 'BaseLLM.*' was never awaited:RuntimeWarning",
    r"ignore:Exception ignored in. <coroutine object Base:pytest.PytestUnraisableExceptionWarning",
    r"ignore:Accessing the .* attribute on the instance is deprecated:DeprecationWarning",
)
PROXIES = {"direct": DirectProxy, "litellm": LiteLLMProxy}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings that LiteLLM's own code causes; other warnings are errors."""
    for item in items:
        for what in LITELLM_OWN:
            item.add_marker(pytest.mark.filterwarnings(what))


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
def backend() -> Callable[..., dict[str, Any]]:
    """Return a function that makes entries of a model list, with the name ``q``."""

    def entry(server: Any, model: str = "hosted_vllm/Q", **params: Any) -> dict[str, Any]:
        base = f"http://127.0.0.1:{server.port}"
        return {"model_name": "q", "litellm_params": {"model": model, "api_base": base, **params}}

    return entry


@pytest.fixture
async def serve(store: InMemoryLightningStore) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that starts proxies; they stop at the end of the test."""
    running: list[DirectProxy] = []

    async def start(*entries: dict[str, Any], kind: str = "litellm", **options: Any) -> Any:
        made = PROXIES[kind](**{"store": store, "model_list": list(entries), **options})
        await made.start()
        running.append(made)
        return made

    yield start
    for made in running:
        if made.is_running():
            await made.stop()


@pytest.fixture
def spans(store: InMemoryLightningStore, claim: AttemptedRollout) -> Callable[[], Any]:
    """Return the spans of the attempt."""

    async def query() -> list[Span]:
        return list((await store.query_spans(claim.rollout_id, claim.attempt.attempt_id)).items)

    return query
