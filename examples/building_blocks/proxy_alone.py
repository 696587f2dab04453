"""The proxy alone: a call of OpenAI's client becomes a span with token ids.

The model is scripted. ``MODEL_URL=http://127.0.0.1:8000/v1`` takes a real vLLM in its place.
"""

from __future__ import annotations

import asyncio
import os

from openai import AsyncOpenAI

from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore


async def call(model_url: str) -> None:
    store = InMemoryLightningStore()
    model = {"model": f"hosted_vllm/{os.environ.get('MODEL', 'm')}", "api_base": model_url}
    proxy = DirectProxy(store=store, model_list=[{"model_name": "policy", "litellm_params": model}])
    await proxy.start()
    try:
        rollout = await store.start_rollout("What is 6 times 7?")
        # The URL names the attempt, so the agent needs no tracing code.
        llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
            await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": rollout.input}]
            )
        spans = (await store.query_spans(rollout.rollout_id)).items
    finally:
        await proxy.stop()

    print("attribute of the span                         value")
    for name, value in sorted(spans[0].attributes.items()):
        print(f"{name:45} {str(value)[:60]}")


if __name__ == "__main__":
    with ScriptedModels([Reply("The answer is 42.")]) as models:
        asyncio.run(call(os.environ.get("MODEL_URL", models.base_url)))
