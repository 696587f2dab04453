"""Starts the programs of a real run, each in a process of its own, as a user does.

These tests use the installed `agl` command and Python files, and import nothing of agl themselves.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agl_testing.ports import free_port

AGL = str(Path(sys.executable).with_name("agl"))
SECONDS = 90


class Model(ThreadingHTTPServer):
    """A chat completions server that adds up correctly only where the prompt says "carefully"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ModelHandler)
        self.seen: list[dict[str, Any]] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class ModelHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(request)
        system, task = (message["content"] for message in request["messages"])
        left, right = task.split("+")
        total = int(left) + int(right) if "carefully" in system else 7
        reply = {
            "id": f"chatcmpl-{len(self.server.seen)}",
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": str(total)},
                }
            ],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, to keep requests out of the test's output."""


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def environ(model: Model) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AGL_")},
        "OPENAI_BASE_URL": model.base_url,
        "OPENAI_API_KEY": "not-a-real-key",
    }


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    """Start a program in the test's folder; programs that still run after the test are killed."""
    running: list[subprocess.Popen[str]] = []

    def starts(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield starts
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        with process:
            pass  # closes the pipe and waits for the process


@pytest.fixture
def finish(start: Start) -> Callable[..., str]:
    """Run a program to its end and return its output; it must succeed."""

    def finishes(*command: str) -> str:
        process = start(*command)
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, output
        return output

    return finishes


@pytest.fixture
def port() -> int:
    return free_port()


def until_open(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until a process listens on a port."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


@pytest.fixture
def agl() -> str:
    """The installed command."""
    return AGL
