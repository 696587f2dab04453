"""Imports PyTorch and other libraries once, and forks Ray's workers from itself.

verl starts six Ray workers or more, most of them one after another. Each imports the same
libraries, which takes it 5 seconds of a core, or 13 without bytecode. A fork has them from the
start, and shares their memory.

This is the method of :mod:`multiprocessing`'s fork server. Ray takes part through its setting
``py_executable``: a worker's command starts :mod:`~agl_verl_cpu.fork_client`, which asks the
server for a fork. It is limited to Linux and to workers without a GPU, because neither the
frameworks of macOS nor CUDA survive a fork.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

__all__ = ["available", "main", "start"]

_IMPORTS: Final = (
    *("torch", "torch.distributed.fsdp", "torchdata.stateful_dataloader", "tensordict"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("accelerate", "aiohttp", "datasets", "fastapi", "hydra", "peft", "uvicorn", "zmq.asyncio"),
    "agl_core",
)
"""The libraries that verl's workers import, without Ray and verl.

Ray reads variables that differ between its workers when it is imported, and verl imports Ray. Both
together take a fork one second.
"""

_CLIENT: Final = Path(__file__).with_name("fork_client.py")
_BACKLOG: Final = 128
"""Clients that may wait while the server imports."""


def available() -> bool:
    """Return whether this system can fork workers."""
    return sys.platform == "linux"


@cache
def start() -> str:
    """Start the server of this process if it does not run; return Ray's ``py_executable``.

    It does not wait for the imports; the first clients do. The server ends with this process.
    """
    folder = tempfile.mkdtemp(prefix="agl-verl-")
    address = f"{folder}/forks"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(_BACKLOG)
        server = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", __name__, str(listener.fileno())],
            # Read when PyTorch is loaded. Ray sets the same for actors with one CPU.
            env={"OMP_NUM_THREADS": "1", **os.environ},
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl+C is for the trainer, which ends its workers
        )

    def stop() -> None:
        server.terminate()  # at once, also during the imports
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    # -I and -S: the client needs no packages, and starts sooner without a search for them.
    return shlex.join([sys.executable, "-I", "-S", str(_CLIENT), address])


def main() -> None:
    """Serve until the owner has died; in a fork, run the program that a client asked for."""
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        for name in _IMPORTS:
            with suppress(ImportError):  # a worker that needs it will say so
                import_module(name)
        gc.collect()
        gc.freeze()  # a collection in a fork would write to the shared pages, which copies them
        connection = _serve(listener)
    if connection is not None:
        _run(connection)


def _serve(listener: socket.socket) -> socket.socket | None:
    """Return None at the server's end, and in each fork the connection to its client."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    while True:
        readable, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in readable:
            return None
        connection, _ = listener.accept()
        if os.fork() == 0:
            os.setpgid(0, 0)  # Ray kills the process groups of its workers
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return connection
        connection.close()


def _run(connection: socket.socket) -> None:
    """Run a client's program with its streams, folder, environment and arguments.

    The client waits for the end of the connection, which is the end of this process.
    """
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as reader:
        request: dict[str, Any] = json.loads(reader.read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    import numpy as np

    np.random.seed()  # otherwise all forks draw the same numbers
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
