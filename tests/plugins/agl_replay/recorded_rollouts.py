"""Records a rollout: a real runner and proxy in front of a scripted server."""

from __future__ import annotations

from typing import Any

from agl_core.agent import LitAgent
from agl_core.store import LightningStore
from agl_core.types import LLM, Rollout
from agl_proxy_direct import DirectProxy
from agl_runner import LitAgentRunner
from agl_scripted import ScriptedModels
from agl_tracer_otel import OtelTracer


async def run_agent(
    agent: LitAgent[Any],
    store: LightningStore,
    models: ScriptedModels,
    *,
    provider: str = "hosted_vllm",
    proxied: bool = True,
    task: Any = "Paris",
) -> Rollout:
    """Run an agent once, and return its rollout."""
    llm: Any = LLM(endpoint=models.base_url, model="m", api_key="none")
    proxy = None
    if proxied:
        # Anthropic's own provider takes a root URL.
        base = models.url if provider == "anthropic" else models.base_url
        params = {"model": f"{provider}/m", "api_base": base}
        proxy = DirectProxy(model_list=[{"model_name": "m", "litellm_params": params}], store=store)
        await proxy.start()
        llm = proxy.as_resource()
    try:
        runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), heartbeat_interval=0)
        with runner.run_context(agent=agent, store=store):
            return await runner.step(task, resources={"llm": llm}, mode="val")
    finally:
        if proxy is not None:
            await proxy.stop()
