"""Ends processes that an agent forked and that returned from the agent.

A child of ``os.fork`` is a copy of the runner with one thread. If it returned into the runner's
code, it would write results of its own, or wait for work that never comes.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agl_core.runner._sync_calls import Outcome


def end_if_forked(pid: int, outcome: Outcome) -> None:
    """End this process if it is not the one that called the agent.

    Its exit code is that of a program whose main part the agent is: that of ``sys.exit``, else 1
    after an error, else 0.

    Args:
        pid: The process that called the agent.
        outcome: The agent's result or error in this process.
    """
    if os.getpid() == pid:
        return
    error = outcome.error
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Not sys.exit: the thread is not the main one, and exit functions belong to the parent.
    os._exit(code if isinstance(code, int) else 0)
