"""Runners: they claim rollouts, run the agent, and write the results. They are plugins."""

from agl_core.runner._base import Runner, choose_concurrency, worker_name
from agl_core.runner._hooks import Hook, Hooks
from agl_core.runner._replay import ReplayHooks, call_replayer, find_replayer

__all__ = [
    "Hook",
    "Hooks",
    "ReplayHooks",
    "Runner",
    "call_replayer",
    "choose_concurrency",
    "find_replayer",
    "worker_name",
]
