"""Runners: they claim rollouts, run the agent, and write down how it went."""

from agl_core.runner._agent_runner import LitAgentRunner
from agl_core.runner._base import Runner
from agl_core.runner._snapshot import system_snapshot

__all__ = ["LitAgentRunner", "Runner", "system_snapshot"]
