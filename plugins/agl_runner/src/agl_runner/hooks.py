"""Registers the runner ``agent``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_runner() -> ComponentSpec:
    return ComponentSpec(
        kind="runner",
        name="agent",
        factory="agl_runner:LitAgentRunner",
        config="agl_runner.config:AgentRunnerConfig",
        summary="Runs an agent on several rollouts at a time, each traced and supervised",
        api=1,
    )
