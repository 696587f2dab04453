"""The runner: it claims rollouts, runs the agent, and writes the results."""

from agl_runner.agent_runner import LitAgentRunner
from agl_runner.config import AgentRunnerConfig
from agl_runner.snapshot import system_snapshot

__all__ = ["AgentRunnerConfig", "LitAgentRunner", "system_snapshot"]
