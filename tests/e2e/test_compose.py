"""The commands of deploy/compose.yaml, run on this machine without containers."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from agl_serving import mint_token
from agl_testing.ports import free_port

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
SECRET = secrets.token_urlsafe(32)

AGENT = """
import agl_core as agl

@agl.prompt_rollout
def add_up(task, prompt_template):
    return float(eval(prompt_template.format(task=task)) > 3)
"""
TRAIN = """
agent = "agent.py:add_up"
train_dataset = ["1 + 1", "2 + 2", "3 + 3"]
algorithm = "baseline"

[resources.prompt]
type = "prompt_template"
engine = "f-string"
template = "{task}"
"""


@contextmanager
def started(
    service: str, port: int, folder: Path, token: str, resume: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Start a service in a folder; its hosts are this machine, and its database is a file."""
    described: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"][service]
    command: list[str] | str = described["command"]
    if isinstance(command, str):
        command = shlex.split(command.replace("${AGL_RESUME:-}", resume))
    command = [
        argument.replace("store:4747", f"127.0.0.1:{port}").replace("0.0.0.0", "127.0.0.1")
        for argument in command
    ]
    if service == "store":
        backend = command.index("postgres")
        command[backend:] = ["sqlite", "--path", "runs.db"]
        command[command.index("--n-workers") + 1] = "1"
        command[command.index("4747")] = str(port)
    with (folder / f"{service}.log").open("w") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("agl")), *command],
            cwd=folder,
            env=os.environ | {"AGL_AUTH_TOKEN": token},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(30)


@pytest.mark.slow
def test_the_services_run_a_train_file_and_resume_it(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "train.toml").write_text(TRAIN)
    port = free_port()
    runner_token = mint_token(SECRET, "runner", lifetime=3600)

    def logs() -> str:
        return "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))

    with (
        started("store", port, tmp_path, SECRET),
        started("runner", port, tmp_path, runner_token) as runner,
    ):
        wait_for_port(port)
        for resume in ("", "--resume"):
            with started("algorithm", port, tmp_path, SECRET, resume) as algorithm:
                assert algorithm.wait(60) == 0, logs()
            assert "succeeded" in (tmp_path / "algorithm.log").read_text(), logs()
        assert runner.poll() is None, logs()  # it waits for the next run


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # no event tells that another process listens
        else:
            return
