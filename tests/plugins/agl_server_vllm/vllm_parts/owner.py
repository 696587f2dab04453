"""A program that starts a server and ends in the way of its second argument.

Usage: ``owner.py MODEL WAY``, with the stand-in on PYTHONPATH. It says ``ready`` when it is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial

from agl_core.execution import ThreadingEvent, supervise
from agl_server_vllm import VLLMServer


async def main(model: str, way: str) -> None:
    server = VLLMServer(model, model="policy", stop_timeout=2, env=dict(os.environ))
    if way == "forgets":
        await server.start()
        print("ready", flush=True)
        return
    async with server:
        print("ready", flush=True)
        if way == "returns":
            return
        if way == "raises":
            raise ZeroDivisionError
        if way == "kills-keeper":
            os.kill(server._engine.process._keeper.pid, signal.SIGKILL)  # pyright: ignore
        if way == "forks" and os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        if way == "forks-python" and os.fork() == 0:
            signal.pause()
        await server.wait()


if __name__ == "__main__":
    work = partial(main, *sys.argv[1:])
    # asyncio.run alone may lose a Ctrl+C that comes just before its loop sleeps.
    asyncio.run(supervise(work, ThreadingEvent(), grace=30))
