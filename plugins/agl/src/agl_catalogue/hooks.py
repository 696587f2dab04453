"""The packages of this project: what messages tell users to install."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agl_core.plugins import CatalogueSpec, hookimpl

PACKAGES: Final[Mapping[str, str]] = {
    # list of packages: written by python3 dev.py packages
    "agl": "catalogue.agl",
    "agl-adapter-trajectory": "adapter.trajectory",
    "agl-adapters": "adapter.messages adapter.proxy-triplet adapter.triplet",
    "agl-algo-apo": "algorithm.apo",
    "agl-algo-gepa": "algorithm.gepa",
    "agl-algo-grpo": "algorithm.grpo",
    "agl-algo-verl": "algorithm.verl check.verl",
    "agl-algorithm-kit": "algorithm.baseline algorithm.evaluation algorithm.comparison run.stored",
    "agl-cli-kit": "command.plugins command.version progress.rich",
    "agl-core": "",
    "agl-credit": "",
    "agl-dashboard": "app.dashboard command.dashboard check.dashboard",
    "agl-doctor": "command.doctor command.plugins.doctor",
    "agl-env-gymnasium": "environment.gymnasium",
    "agl-env-openenv": "environment.openenv",
    "agl-env-verifiers": "environment.verifiers",
    "agl-exec-cs": "execution.cs command.runner command.algorithm",
    "agl-exec-k8s": "execution.k8s",
    "agl-exec-ray": "execution.ray",
    "agl-exec-shm": "execution.shm",
    "agl-export": "command.export",
    "agl-jinja": "template_engine.jinja",
    "agl-judge": "command.rescore",
    "agl-legacy": "",
    "agl-metrics-console": "metrics.console metrics.multi",
    "agl-metrics-mlflow": "metrics.mlflow",
    "agl-metrics-otel": "metrics.otel",
    "agl-metrics-prometheus": "metrics.prometheus app.prometheus command.prometheus",
    "agl-metrics-tensorboard": "metrics.tensorboard",
    "agl-metrics-wandb": "metrics.wandb",
    "agl-promote": "command.promote interceptor.promote",
    "agl-prompt-search": "",
    "agl-proxy-direct": (
        "proxy.direct provider.anthropic provider.hosted_vllm provider.openai command.proxy"
    ),
    "agl-proxy-litellm": "proxy.litellm dialect.litellm",
    "agl-replay": "command.replay replayer.recorded",
    "agl-runner": "runner.agent",
    "agl-scaffold": "command.plugins.new",
    "agl-scripted": "",
    "agl-server-hf": "llm_server.hf",
    "agl-server-vllm": "llm_server.vllm check.vllm command.vllm",
    "agl-serving": "",
    "agl-simulate": "command.simulate",
    "agl-store-http": "store.http command.store check.port",
    "agl-store-kit": "",
    "agl-store-memory": "store.memory",
    "agl-store-mongo": "store.mongo",
    "agl-store-postgres": "store.postgres check.postgres",
    "agl-store-sqlite": "store.sqlite",
    "agl-testing": "",
    "agl-tiny-model": "",
    "agl-top": "command.attempts command.resources command.rollouts command.top command.workers",
    "agl-trace": "command.trace check.store",
    "agl-tracer-agentops": "tracer.agentops dialect.agentops",
    "agl-tracer-dummy": "tracer.dummy",
    "agl-tracer-otel": "tracer.otel",
    "agl-tracer-weave": "tracer.weave dialect.weave",
    "agl-tracking": "",
    "agl-train": "command.compare command.eval command.train",
    "agl-verl-cpu": "",
    # end of the list
}
"""Entry points of each distribution; ``python3 dev.py packages`` writes them."""

NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "Baseline": ("agl_algorithm_kit", "agl-algorithm-kit"),
    "configure_logger": ("agl_cli_kit", "agl-cli-kit"),
    "setup_logging": ("agl_cli_kit", "agl-cli-kit"),
    "setup_module_logging": ("agl_cli_kit", "agl-cli-kit"),
    "SharedMemoryExecutionStrategy": ("agl_exec_shm", "agl-exec-shm"),
    "LitAgentRunner": ("agl_runner", "agl-runner"),
    "OtelTracer": ("agl_tracer_otel", "agl-tracer-otel"),
    "DummyTracer": ("agl_tracer_dummy", "agl-tracer-dummy"),
    "InMemoryLightningStore": ("agl_store_memory", "agl-store-memory"),
    "LightningStoreThreaded": ("agl_store_kit", "agl-store-kit"),
    "LightningStoreClient": ("agl_store_http", "agl-store-http"),
    "LightningStoreServer": ("agl_store_http", "agl-store-http"),
    "ClientServerExecutionStrategy": ("agl_exec_cs", "agl-exec-cs"),
    "MultiprocessingEvent": ("agl_exec_cs", "agl-exec-cs"),
    "DirectProxy": ("agl_proxy_direct", "agl-proxy-direct"),
    "LlmProxyTraceToTriplet": ("agl_adapters", "agl-adapters"),
    "TraceToMessages": ("agl_adapters", "agl-adapters"),
    "TracerTraceToTriplet": ("agl_adapters", "agl-adapters"),
    "lightning_cli": ("agl_train", "agl-train"),
    "APO": ("agl_algo_apo", "agl-algo-apo"),
    "VERL": ("agl_algo_verl", "agl-algo-verl"),
    "AgentOpsTracer": ("agl_tracer_agentops", "agl-tracer-agentops"),
    "WeaveTracer": ("agl_tracer_weave", "agl-tracer-weave"),
    "MongoLightningStore": ("agl_store_mongo", "agl-store-mongo"),
}
"""Module and distribution of each name that ``agl_core`` gives if the package is installed."""


@hookimpl
def agl_catalogue() -> CatalogueSpec:
    return CatalogueSpec("agl", PACKAGES, NAMES, summary="The packages of agl", api=1)
