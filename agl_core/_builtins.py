"""Describes the built-in components and commands; entry points find it like any plugin's hooks."""

from __future__ import annotations

from agl_core.plugins import CommandSpec, ComponentSpec, hookimpl


@hookimpl
def agl_adapter() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="adapter",
            name="messages",
            factory="agl_core.adapter._messages:TraceToMessages",
            config="agl_core.adapter._config:MessagesConfig",
            summary="Conversations in OpenAI's chat format",
        ),
        ComponentSpec(
            kind="adapter",
            name="proxy-triplet",
            factory="agl_core.adapter._proxy_triplet:LlmProxyTraceToTriplet",
            config="agl_core.adapter._config:ProxyTripletConfig",
            summary="One triplet per call that went through an LLM proxy",
        ),
        ComponentSpec(
            kind="adapter",
            name="trajectory",
            factory="agl_core.adapter._trajectory:TraceToTrajectory",
            config="agl_core.adapter._config:TrajectoryConfig",
            summary="Calls that continue each other token by token, as one row each",
        ),
        ComponentSpec(
            kind="adapter",
            name="triplet",
            factory="agl_core.adapter._triplet:TracerTraceToTriplet",
            config="agl_core.adapter._config:TripletConfig",
            summary="One triplet per model call that a tracer recorded",
        ),
    ]


@hookimpl
def agl_algorithm() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="algorithm",
            name="baseline",
            factory="agl_core.algorithm._baseline:Baseline",
            config="agl_core.algorithm._config:BaselineConfig",
            summary="Runs the datasets through the agent and reports; learns nothing",
        ),
    ]


@hookimpl
def agl_command() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="doctor",
            target="agl_core.cli._doctor:doctor",
            summary="Check the environment, the plugins and a store",
        ),
        CommandSpec(
            name="eval",
            target="agl_core.cli._eval:evaluate",
            summary="Score the agent that a file describes, changing nothing",
        ),
        CommandSpec(
            name="plugins",
            target="agl_core.cli._plugins:plugins",
            summary="List, describe and check plugins",
        ),
        CommandSpec(
            name="train",
            target="agl_core.cli._train:train",
            summary="Train the agent that a file describes",
        ),
        CommandSpec(
            name="version",
            target="agl_core.cli._version:version",
            summary="Versions of the core, Python and the installed plugins",
        ),
    ]


@hookimpl
def agl_execution() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="execution",
            name="shm",
            factory="agl_core.execution._shared_memory:SharedMemoryExecutionStrategy",
            config="agl_core.execution._config:SharedMemoryConfig",
            summary="Algorithm and runners as threads of one process",
        ),
    ]


@hookimpl
def agl_store() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="store",
            name="memory",
            factory="agl_core.store._memory.store:InMemoryLightningStore",
            config="agl_core.store._memory.config:MemoryStoreConfig",
            capabilities=frozenset({"thread_safe", "async_safe", "events"}),
            summary="In this process's memory; nothing survives it",
        ),
    ]


@hookimpl
def agl_tracer() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="tracer",
            name="dummy",
            factory="agl_core.tracer._dummy:DummyTracer",
            config="agl_core.tracer._config:DummyTracerConfig",
            summary="Records nothing: only what an agent returns is stored",
        ),
        ComponentSpec(
            kind="tracer",
            name="otel",
            factory="agl_core.tracer._otel:OtelTracer",
            config="agl_core.tracer._config:OtelTracerConfig",
            summary="Everything OpenTelemetry sees, with any instrumentation library",
        ),
    ]
