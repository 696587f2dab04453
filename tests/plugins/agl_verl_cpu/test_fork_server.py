"""The fork server runs programs as plain Python would, with the libraries already imported."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agl_verl_cpu import fork_server

pytestmark = pytest.mark.skipif(not fork_server.available(), reason="the fork server needs Linux")

Run = Callable[..., Any]

FACTS = """
import json, os, sys, threading
print(json.dumps({
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "variable": os.environ.get("A_VARIABLE"),
    "main": __name__,
    "parent": os.getppid(),
    "group": os.getpgid(0) == os.getpid(),
    "torch": "torch" in sys.modules,
    "ray": "ray" in sys.modules,
    "threads": threading.active_count(),
}))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the command that starts a program as a fork, from a process that holds the server."""
    holder = tmp_path_factory.mktemp("holder") / "holder.py"
    holder.write_text(
        "import sys\n"
        "from agl_verl_cpu import fork_server\n"
        "assert fork_server.start() == fork_server.start()\n"
        "print(fork_server.start(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        command = shlex.split(process.stdout.readline())
        yield command
        process.communicate(timeout=60)
        assert not Path(command[-1]).parent.exists()


@pytest.fixture
def run(server: list[str], tmp_path: Path) -> Run:
    def run(code: str, *arguments: str, **options: Any) -> Any:
        program = tmp_path / "program.py"
        program.write_text(code)
        command = [*server, str(program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)

    return run


def test_a_fork_is_the_program_with_its_libraries_loaded(run: Run, tmp_path: Path):
    found = run(FACTS, "--a", "b c", cwd=tmp_path, env={**os.environ, "A_VARIABLE": "\udcff x"})
    facts = json.loads(found.stdout)
    assert facts.pop("parent") != os.getpid()
    assert facts == {
        "arguments": ["--a", "b c"],
        "folder": str(tmp_path),
        "variable": "\udcff x",
        "main": "__main__",
        "group": True,
        "torch": True,
        "ray": False,
        "threads": 1,
    }


def test_variables_of_the_server_and_of_other_forks_are_not_seen(run: Run):
    assert json.loads(run(FACTS, env={"A_VARIABLE": "1"}).stdout)["variable"] == "1"
    assert json.loads(run(FACTS, env={}).stdout)["variable"] is None


def test_errors_are_printed_where_the_client_prints(run: Run):
    found = run("import sys; print('out'); sys.exit('an error')")
    assert (found.stdout, found.stderr) == ("out\n", "an error\n")


def test_random_numbers_differ_between_forks(run: Run):
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    assert len(set(" ".join(run(code).stdout for _ in range(3)).split())) == 6


def test_a_fork_waits_for_its_own_children(run: Run):
    code = "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'exit(3)']))"
    assert "returncode=3" in run(code).stdout


def test_a_killed_fork_ends_its_client_and_leaves_no_zombie(run: Run):
    found = run("import os, signal; print(os.getpid(), flush=True); os.kill(0, signal.SIGKILL)")
    assert found.returncode == 0  # the group of the fork is its own
    # The kernel closes the connection, for which the client waits, before it reaps the fork.
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(found.stdout)).wait(60)  # a zombie would stay
    assert json.loads(run(FACTS).stdout)["torch"] is True


def test_without_the_server_the_program_runs_as_usual(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(FACTS)
    client = [sys.executable, "-I", "-S", str(fork_server._CLIENT), str(tmp_path / "nothing")]
    done = subprocess.run([*client, program, "x"], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert (facts["arguments"], facts["torch"], facts["parent"]) == (["x"], False, os.getpid())


def test_the_server_ends_with_its_owner(tmp_path: Path):
    code = (
        "import os, psutil\n"
        "from agl_verl_cpu import fork_server\n"
        "fork_server.start()\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(60)
