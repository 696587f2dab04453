"""Runners: they claim rollouts, run the agent, and write down how it went."""

from agl_core.runner.agent_runner import LitAgentRunner
from agl_core.runner.base import Runner
from agl_core.runner.snapshot import system_snapshot

__all__ = ["LitAgentRunner", "Runner", "system_snapshot"]
