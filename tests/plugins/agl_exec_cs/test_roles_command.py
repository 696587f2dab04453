"""``agl algorithm`` and ``agl runner`` as separate programs, as on separate machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_testing.ports import free_port


def agl(*arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agl_cli_kit", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


@pytest.fixture
def port() -> str:
    return str(free_port())


def test_a_run_of_two_programs(project: Path, port: str) -> None:
    # The runners' machine has the agent but no data.
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    for name in ("train.toml", "agl_cli_agent.py"):
        (elsewhere / name).write_text((project / name).read_text())
    secret = "a secret of more than sixteen characters"
    runner = agl(
        "runner",
        "train.toml",
        "--server",
        f"http://127.0.0.1:{port}",
        "-n",
        "2",
        "--concurrency",
        "3",
        cwd=elsewhere,
        AGL_AUTH_TOKEN=secret,
    )
    algorithm = agl(
        "algorithm", "train.toml", "--port", port, "--json", cwd=project, AGL_AUTH_TOKEN=secret
    )
    out, err = algorithm.communicate(timeout=60)
    assert algorithm.returncode == 0, err
    said = json.loads(out.splitlines()[-1])
    assert said["status"] == "succeeded"
    assert said["metrics"]["rollouts"] == 5
    assert said["metrics"]["succeeded"] == 5
    _, err = runner.communicate(timeout=30)  # notified of the end of the run
    assert runner.returncode == 0, err


def count_rollouts(port: str) -> int:
    """Return the number of rollouts in the algorithm's store; 0 while its server is starting."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/agl/rollouts") as reply:
            return json.load(reply)["total"]
    except OSError:
        return 0


def test_sigterm_stops_a_waiting_algorithm(project: Path, port: str) -> None:
    algorithm = agl("algorithm", "train.toml", "--port", port, cwd=project)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not count_rollouts(port):
        time.sleep(0.05)
    algorithm.send_signal(signal.SIGTERM)
    out, err = algorithm.communicate(timeout=30)
    assert algorithm.returncode == 130, err
    assert "interrupted" in out


def test_a_server_may_be_a_host_with_its_port(
    project: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ["runner", str(project / "train.toml"), "--server", f"127.0.0.1:{port}"]
    assert main([*server, "--connect-timeout", "0"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"no store server answered at http://127.0.0.1:{port} for 0 s" in said
    assert main([*server, "--port", "4747"]) == 2
    said = capsys.readouterr().err
    assert f"--port is for a host without a port, not for 127.0.0.1:{port}" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "agent=nothing.py:solve"], "train.toml: agent: there is no file"),
        (["--set", "strategy.graceful_delay=1"], "strategy.graceful_delay: unknown option"),
        (["--set", "strategy.start_method=x"], "strategy.start_method: should be 'fork'"),
    ],
)
@pytest.mark.parametrize("role", ["runner", "algorithm"])
def test_mistakes_are_one_line(
    project: Path, role: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([role, "train.toml", *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
