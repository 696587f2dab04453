"""The built-in adapter ``messages``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_adapter() -> ComponentSpec:
    return ComponentSpec(
        kind="adapter",
        name="messages",
        factory="agl_core.adapter.messages:TraceToMessages",
        config="agl_core.adapter.config:MessagesConfig",
        summary="Conversations in OpenAI's chat format",
    )
