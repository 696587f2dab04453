"""Agents: what runs a task, as a class or as a decorated function."""

from agl_core.agent._base import LitAgent
from agl_core.agent._decorators import FunctionalLitAgent, llm_rollout, prompt_rollout, rollout

__all__ = ["FunctionalLitAgent", "LitAgent", "llm_rollout", "prompt_rollout", "rollout"]
