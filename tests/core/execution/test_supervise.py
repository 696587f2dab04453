"""A bundle and the signals that end its loop."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, signal, threading
from agl_core.execution import ThreadingEvent, supervise

async def main():
    loop = asyncio.get_running_loop()
    # Handled by another thread, the signal does not wake the loop.
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

try:
    asyncio.run(supervise(main, ThreadingEvent(), grace=5))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_ctrl_c_that_does_not_wake_the_loop_is_seen() -> None:
    """As one that comes between the loop's last instruction and its sleep."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.stdout.splitlines() == ["cancelled", "interrupted"]
