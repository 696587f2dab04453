"""The kit tells an algorithm that blocks its loop from a machine that is busy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from agl_testing.algorithm.interrupts import MeasureTheLoop

STOP = """
import os, signal, sys, time
os.kill(int(sys.argv[1]), signal.SIGSTOP)
time.sleep(1)
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""


async def longest(work: Callable[[], Any]) -> float:
    measure: Any = MeasureTheLoop()
    beside = asyncio.ensure_future(measure.beside(None, None))
    await asyncio.sleep(0.1)
    work()
    await asyncio.sleep(0.1)
    beside.cancel()
    await asyncio.wait({beside})
    assert measure.ticks
    return measure.longest


async def test_a_call_that_blocks_the_loop_counts():
    assert await longest(lambda: time.sleep(1)) > 0.5


async def test_a_call_that_keeps_the_interpreter_lock_counts():
    spent: list[float] = []

    def keep_the_lock() -> None:
        before = time.process_time()
        sum(range(30_000_000))  # one step for the interpreter
        spent.append(time.process_time() - before)

    assert await longest(keep_the_lock) > spent[0] / 2


@pytest.mark.skipif(os.name != "posix", reason="only POSIX can stop a process")
async def test_time_in_which_the_whole_process_waits_does_not_count():
    took: list[float] = []

    def stop_this_process() -> None:
        before = time.monotonic()
        subprocess.run([sys.executable, "-c", STOP, str(os.getpid())], check=True)
        took.append(time.monotonic() - before)

    assert await longest(stop_this_process) < took[0] - 0.8
