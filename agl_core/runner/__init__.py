"""Runners: they claim rollouts, run the agent, and write the results."""

from agl_core._known_errors import ERROR_TABLE, KnownErrors
from agl_core.runner._agent_runner import LitAgentRunner
from agl_core.runner._base import Runner, worker_name
from agl_core.runner._hooks import Hook
from agl_core.runner._main_thread import run_beside_main_thread
from agl_core.runner._replay import ReplayHooks, call_replayer, find_replayer
from agl_core.runner._snapshot import system_snapshot
from agl_core.runner._sync_calls import SyncCalls

__all__ = [
    "ERROR_TABLE",
    "Hook",
    "KnownErrors",
    "LitAgentRunner",
    "ReplayHooks",
    "Runner",
    "SyncCalls",
    "call_replayer",
    "find_replayer",
    "run_beside_main_thread",
    "system_snapshot",
    "worker_name",
]
