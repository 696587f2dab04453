"""Lists the plugins of this project's packages, for messages that say what to install.

Messages never suggest other packages: anyone could register an unused name. ``dev.py packages``
writes the table from the ``pyproject.toml`` of every package, and lint compares them.
"""

from __future__ import annotations

from typing import Final

PACKAGES: Final[dict[str, str]] = {
    # list of packages: written by python3 dev.py packages
    "agl-adapter-trajectory": "adapter.trajectory",
    "agl-adapters": "adapter.messages adapter.proxy-triplet adapter.triplet",
    "agl-algo-apo": "algorithm.apo",
    "agl-algo-gepa": "algorithm.gepa",
    "agl-algo-grpo": "algorithm.grpo",
    "agl-algo-verl": "algorithm.verl check.verl",
    "agl-dashboard": "app.dashboard command.dashboard",
    "agl-doctor": "command.doctor",
    "agl-env-gymnasium": "environment.gymnasium",
    "agl-env-openenv": "environment.openenv",
    "agl-env-verifiers": "environment.verifiers",
    "agl-exec-cs": "execution.cs command.runner command.algorithm",
    "agl-exec-k8s": "execution.k8s",
    "agl-exec-ray": "execution.ray",
    "agl-export": "command.export",
    "agl-judge": "command.rescore",
    "agl-metrics-console": "metrics.console metrics.multi",
    "agl-metrics-mlflow": "metrics.mlflow",
    "agl-metrics-otel": "metrics.otel",
    "agl-metrics-prometheus": "metrics.prometheus app.prometheus command.prometheus",
    "agl-metrics-tensorboard": "metrics.tensorboard",
    "agl-metrics-wandb": "metrics.wandb",
    "agl-promote": "command.promote",
    "agl-proxy-direct": (
        "proxy.direct provider.anthropic provider.hosted_vllm provider.openai command.proxy"
    ),
    "agl-proxy-litellm": "proxy.litellm dialect.litellm",
    "agl-replay": "command.replay replayer.recorded",
    "agl-server-hf": "llm_server.hf",
    "agl-server-vllm": "llm_server.vllm check.vllm command.vllm",
    "agl-simulate": "command.simulate",
    "agl-store-http": "store.http command.store check.port",
    "agl-store-mongo": "store.mongo",
    "agl-store-postgres": "store.postgres check.postgres",
    "agl-store-sqlite": "store.sqlite",
    "agl-top": "command.attempts command.resources command.rollouts command.top command.workers",
    "agl-trace": "command.trace check.store",
    "agl-tracer-agentops": "tracer.agentops dialect.agentops",
    "agl-tracer-weave": "tracer.weave dialect.weave",
    "agl-train": "command.compare command.eval command.train",
    # end of the list
}
"""Entry points of each distribution."""

_OWNERS: Final = {key: dist for dist, keys in PACKAGES.items() for key in keys.split()}


def known_names(kind: str) -> tuple[str, ...]:
    """Return the names of this kind that this project's packages provide."""
    keys = (key.split(".") for key in _OWNERS)
    return tuple(name for of_kind, name in keys if of_kind == kind)


def package_of(kind: str, name: str) -> str:
    """Return this project's distribution that provides a plugin, or an empty string."""
    return _OWNERS.get(f"{kind}.{name}", "")
