"""The kinds of the core, each described once; plugins of the kind ``kind`` add others."""

from __future__ import annotations

from typing import Final

from agl_core.plugins._spec import KindSpec

KIND_SPECS: Final = {
    spec.name: spec
    for spec in (
        KindSpec(
            "store",
            contract="agl_core.store:LightningStore",
            capabilities=frozenset(
                {
                    "async_safe",
                    "compare_and_set",
                    "durable",
                    "ends",
                    "events",
                    "evicts",
                    "fails_commits",
                    "otlp_traces",
                    "processes",
                    "scans",
                    "thread_safe",
                    "zero_copy",
                }
            ),
            summary="keeps tasks, spans and resources",
        ),
        KindSpec(
            "tracer",
            contract="agl_core.tracer:Tracer",
            capabilities=frozenset({"concurrent", "nested", "opentelemetry", "threads"}),
            summary="turns an agent's calls into spans",
        ),
        KindSpec(
            "adapter",
            contract="agl_core.adapter:Adapter",
            capabilities=frozenset({"empty", "logprobs", "messages", "rows", "triplets"}),
            summary="turns spans into an algorithm's data",
        ),
        KindSpec(
            "runner",
            contract="agl_core.runner:Runner",
            capabilities=frozenset(),
            summary="runs an agent on the rollouts of a store",
        ),
        KindSpec(
            "algorithm",
            contract="agl_core.algorithm:Algorithm",
            capabilities=frozenset({"all_tasks", "improves", "no_data", "resources", "resumes"}),
            summary="improves a resource",
        ),
        KindSpec(
            "proxy",
            contract="agl_core.proxy:LLMProxy",
            capabilities=frozenset(
                {"balancing", "passthrough", "routes", "streaming", "token_ids", "translation"}
            ),
            summary="records calls between agents and LLM servers",
        ),
        KindSpec(
            "execution",
            contract="agl_core.execution:ExecutionStrategy",
            capabilities=frozenset({"fails_open_attempts", "watchdog"}),
            summary="runs algorithm and runners",
        ),
        KindSpec(
            "llm_server",
            contract="agl_core.llm_server:LLMServer",
            capabilities=frozenset({"token_ids", "weights"}),
            summary="serves a model and loads new weights",
        ),
        KindSpec(
            "metrics",
            contract="agl_core.metrics:Metrics",
            capabilities=frozenset({"buckets", "readable"}),
            summary="receives counters, gauges and histograms",
        ),
        KindSpec(
            "command",
            spec="agl_core.plugins:CommandSpec",
            summary="a subcommand of agl",
            called="Called by agl for its help text and to run the command. The command's module "
            "is imported only to run it.",
        ),
        KindSpec(
            "app",
            spec="agl_core.plugins:AppSpec",
            summary="an ASGI app on the store server",
            called="Called by the store server when it starts.",
        ),
        KindSpec(
            "hook",
            spec="agl_core.plugins:HookSpec",
            summary="a listener to life-cycle events",
            called="Called in each process before its first event.",
        ),
        KindSpec(
            "interceptor",
            spec="agl_core.plugins:InterceptorSpec",
            summary="code around the calls of stores",
            called="Called in each process before its first run, and before it serves a store.",
        ),
        KindSpec(
            "dialect",
            spec="agl_core.plugins:DialectSpec",
            summary="a span vocabulary",
            called="Called by the adapters before they read the first span in a process. The "
            "core's own vocabularies are tried first, then those of plugins in order of their "
            "names.",
        ),
        KindSpec(
            "call_rule",
            spec="agl_core.plugins:CallRuleSpec",
            summary="a rule for auxiliary calls",
            called="Called by adapters and agl trace before they look for the first auxiliary call "
            "in a process. The rules of the adapters are asked first, then those of plugins in "
            "order of their names.",
        ),
        KindSpec(
            "provider",
            spec="agl_core.plugins:ProviderSpec",
            summary="a kind of LLM backend",
            called="Called by a proxy when it reads a model list.",
        ),
        KindSpec(
            "check",
            spec="agl_core.plugins:CheckSpec",
            summary="a check of agl doctor",
            called="Called by agl doctor: a check of the environment always, a check of a store "
            "with --store.",
        ),
        KindSpec(
            "resource",
            spec="agl_core.plugins:ResourceSpec",
            summary="a resource type",
            called="Called when a process decodes a resource of an unknown type, and when a "
            "schema of all known types is generated.",
        ),
        KindSpec(
            "environment",
            spec="agl_core.plugins:EnvironmentSpec",
            summary="the environments of a library",
            called="Called when the agent of a run is given as a reference that starts with the "
            "plugin's name.",
        ),
        KindSpec(
            "replayer",
            spec="agl_core.plugins:ReplayerSpec",
            summary="repeats recorded rollouts",
            called="Called when a rollout or a suite of rollouts is replayed or recorded.",
            experimental=True,
        ),
        KindSpec(
            "template_engine",
            spec="agl_core.plugins:TemplateEngineSpec",
            summary="fills prompt templates",
            called="Called when a process first fills a prompt template of the engine.",
            experimental=True,
        ),
        KindSpec(
            "progress",
            spec="agl_core.plugins:ProgressSpec",
            summary="shows progress in a terminal",
            called="Called when long work begins in a process whose standard error is a terminal. "
            "If several are installed, the first by name is used.",
            experimental=True,
        ),
        KindSpec(
            "run",
            spec="agl_core.plugins:RunSpec",
            summary="runs that can be resumed",
            called="Called when a trainer begins a run of a name.",
            experimental=True,
        ),
        KindSpec(
            "catalogue",
            spec="agl_core.plugins:CatalogueSpec",
            summary="a list of packages",
            called="Called when plugins are discovered, at the start of each process.",
            experimental=True,
        ),
        KindSpec(
            "kind",
            spec="agl_core.plugins:KindSpec",
            summary="a kind of plugins",
            experimental=True,
            called="Called when a plugin of the kind is first used.",
        ),
    )
}
"""The kinds of the core by name."""

KINDS: Final[tuple[str, ...]] = tuple(KIND_SPECS)
