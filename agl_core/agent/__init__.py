"""Agents: the code that runs a task, as a class or as a decorated function."""

from agl_core.agent._base import LitAgent
from agl_core.agent._child_environment import child_environment
from agl_core.agent._decorators import FunctionalLitAgent, llm_rollout, prompt_rollout, rollout
from agl_core.agent._environment import Environment, load_environment
from agl_core.agent._no_proxy import call_models_directly
from agl_core.agent._views import RunnerView, TrainerView

__all__ = [
    "Environment",
    "FunctionalLitAgent",
    "LitAgent",
    "RunnerView",
    "TrainerView",
    "call_models_directly",
    "child_environment",
    "llm_rollout",
    "load_environment",
    "prompt_rollout",
    "rollout",
]
