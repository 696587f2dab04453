"""Hooks of the adapters."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_adapter() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="adapter",
            name="messages",
            factory="agl_adapters.messages:TraceToMessages",
            config="agl_adapters.config:MessagesConfig",
            summary="Conversations in OpenAI's chat format",
            api=1,
        ),
        ComponentSpec(
            kind="adapter",
            name="proxy-triplet",
            factory="agl_adapters.proxy_triplet:LlmProxyTraceToTriplet",
            config="agl_adapters.config:ProxyTripletConfig",
            summary="One triplet per call that went through an LLM proxy",
            api=1,
        ),
        ComponentSpec(
            kind="adapter",
            name="triplet",
            factory="agl_adapters.triplet:TracerTraceToTriplet",
            config="agl_adapters.config:TripletConfig",
            summary="One triplet per model call that a tracer recorded",
            api=1,
        ),
    ]
