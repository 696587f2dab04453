"""Agents that use LiteLLM's SDK, through the direct proxy: each provider's path is recorded."""

from __future__ import annotations

from typing import Any

import litellm
import pytest

from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels, tokenize
from agl_store_memory import InMemoryLightningStore

MESSAGES: Any = [{"role": "user", "content": "hi"}]
AZURE = {"api_version": "2024-10-21"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("root", [False, True], ids=["v1", "root"])
@pytest.mark.parametrize(
    ("provider", "options"),
    [("hosted_vllm", {}), ("anthropic", {"max_tokens": 9}), ("azure", AZURE)],
)
async def test_a_call_is_recorded_with_its_tokens(
    provider: str, options: dict[str, Any], root: bool, stream: bool
):
    store = InMemoryLightningStore()
    with ScriptedModels([Reply("Hello there my friend")], models=["m"]) as models:
        backend = {"model": "hosted_vllm/m", "api_base": models.base_url}
        proxy = DirectProxy(
            store=store, model_list=[{"model_name": "m", "litellm_params": backend}]
        )
        await proxy.start()
        try:
            started = await store.start_rollout(input="-")
            llm = proxy.as_resource(started.rollout_id, started.attempt.attempt_id)
            made: Any = await litellm.acompletion(
                model=f"{provider}/m",
                messages=MESSAGES,
                api_base=llm.endpoint.removesuffix("/v1") if root else llm.endpoint,
                api_key="-",
                num_retries=0,
                stream=stream,
                **options,
            )
            if stream:
                texts = [chunk.choices[0].delta.content or "" async for chunk in made]
            else:
                texts = [made.choices[0].message.content]
        finally:
            await proxy.stop()
    assert "".join(texts) == "Hello there my friend"
    (span,) = (await store.query_spans(started.rollout_id)).items
    expected = [token.id for token in tokenize("Hello there my friend")]
    assert span.attributes["response_token_ids"] == expected
    assert span.attributes["gen_ai.request.model"] == "m"
