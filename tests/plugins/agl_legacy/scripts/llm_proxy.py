"""The LLM proxy: calls through it become spans with token ids, and triplets."""

import asyncio
import os

import agentlightning as agl
from agentlightning.adapter import LlmProxyTraceToTriplet
from agentlightning.llm_proxy import LLMProxy, ModelConfig
from openai import AsyncOpenAI


async def call(url: str, stream: bool = False) -> str:
    async with AsyncOpenAI(base_url=url, api_key="dummy") as client:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        if not stream:
            answer = await client.chat.completions.create(model="gpt-local", messages=messages)
            return answer.choices[0].message.content or ""
        chunks = await client.chat.completions.create(
            model="gpt-local", messages=messages, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


async def main() -> None:
    store = agl.InMemoryLightningStore(thread_safe=True)
    models: list[ModelConfig] = [
        {
            "model_name": "gpt-local",
            "litellm_params": {
                "model": "hosted_vllm/simulated",
                "api_base": os.environ["OPENAI_BASE_URL"],
                "api_key": "dummy",
            },
        }
    ]
    proxy = LLMProxy(
        port=int(os.environ["PORT"]),
        model_list=models,
        store=store,
        num_retries=2,
        launch_mode="thread",
        callbacks=["return_token_ids", "opentelemetry"],
    )
    rollout = await store.start_rollout(input="capital")
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    await proxy.start()
    try:
        assert proxy.is_running()
        resource = proxy.as_resource(*ids)
        assert isinstance(resource, agl.LLM)
        assert resource.model == "gpt-local"
        print(await call(resource.endpoint))
        general = proxy.as_resource()
        assert isinstance(general, agl.ProxyLLM)
        print(await call(general.get_base_url(*ids), stream=True))
        # The proxy of 0.3 has an endpoint without /v1, which its users append.
        print(await call(resource.endpoint + "/v1"))
    finally:
        await proxy.stop()
    await store.update_attempt(*ids, status="succeeded")
    spans = await store.query_spans(rollout.rollout_id)
    triplets = LlmProxyTraceToTriplet().adapt(list(spans))
    print(len(spans), [bool(t.prompt["token_ids"] and t.response["token_ids"]) for t in triplets])


if __name__ == "__main__":
    asyncio.run(main())
