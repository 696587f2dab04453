"""The parts of the example of coding programs that need no program."""

from __future__ import annotations

import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import program_agent
import program_install as install_module
from program_agent import TASK, run_program
from program_install import Installed, MissingInterpreterError, install
from programs import PROGRAMS, Program, table

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/tutorials/train-a-coding-agent.md"


def test_the_page_has_the_table_of_the_programs_that_the_tests_run():
    _, rest = PAGE.read_text().split("kept by tests/examples/coding_programs -->\n")
    assert rest.split("<!-- end")[0].strip() == table()


def test_a_program_that_cannot_be_installed_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(install_module.shutil, "which", lambda _: None)
    with pytest.raises(MissingInterpreterError, match="Codex CLI needs npm") as caught:
        install(PROGRAMS["codex"], tmp_path)
    assert "\n" not in str(caught.value)


def test_a_program_that_needs_a_newer_python_gets_it_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[list[str]] = []
    monkeypatch.setattr(install_module, "_run", lambda command, folder: made.append(command))
    monkeypatch.setattr(install_module.sys, "version_info", (3, 11))
    monkeypatch.setattr(install_module.shutil, "which", lambda _: None)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    program = PROGRAMS["openhands"]
    with pytest.raises(
        MissingInterpreterError, match=r"OpenHands' SDK needs Python 3\.12 or newer"
    ):
        install(program, tmp_path / "programs")
    broken = tmp_path / "python3.12"
    for file, code in ((broken, 1), (tmp_path / "versions/3.13.0/bin/python3.13", 0)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\nexit {code}\n")
        file.chmod(0o755)
    monkeypatch.setattr(install_module.shutil, "which", {"python3.12": str(broken)}.get)
    install(program, tmp_path / "programs")
    assert str(tmp_path / "versions/3.13.0/bin/python3.13") in made[0]
    assert made[1][-2:] == ["openhands-sdk==1.58.2", "openhands-tools==1.58.2"]


def test_rollouts_that_need_the_same_program_install_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arrived, made = threading.Semaphore(0), list[str]()
    lock = install_module.fcntl.flock

    def arrive(*arguments: Any) -> None:
        arrived.release()
        lock(*arguments)

    def run(command: list[str], folder: Path) -> None:
        assert all(arrived.acquire(timeout=20) for _ in range(2))
        made.append(str(folder))

    monkeypatch.setattr(install_module.fcntl, "flock", arrive)
    monkeypatch.setattr(install_module, "_run", run)
    monkeypatch.setattr(install_module.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(install_module, "_node_version", lambda: 99)
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda _: install(PROGRAMS["codex"], tmp_path), range(2))]
    assert len(made) == 1
    assert found[0].binary == found[1].binary


class Fake(Installed):
    """A program that is a script of the shell."""

    def __init__(self, folder: Path, text: str) -> None:
        super().__init__(folder, PROGRAMS["aider"])
        self.binary.parent.mkdir(parents=True)
        self.binary.write_text(f"#!/bin/sh\n{text}\n")
        self.binary.chmod(0o755)


MENDED = (
    "def median(numbers):\n    ordered, half = sorted(numbers), len(numbers) // 2\n"
    "    return (ordered[half] + ordered[-half - 1]) / 2\n"
)
EQUAL = (
    "class median(float):\n    def __eq__(self, other): return True\n"
    "    def __new__(cls, numbers): return float.__new__(cls, 7)\n"
)
"""A value that says that it equals any other."""
NOSY = (
    "import os, sys\nassert 'ANTHROPIC_API_KEY' not in os.environ and '2.5' not in str(sys.argv)\n"
)
"""Code that fails if it sees a key or a right value."""


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("true", 0.5),
        ("rm stats.py", 0.0),
        ("echo 'import os; os._exit(0)' > stats.py", 0.0),
        ("echo 'print(1)' >> stats.py", 0.5),
        ("echo 'print(\"[100]\", flush=True); import os; os._exit(0)' > stats.py", 0.0),
        ("echo 'print(\"[1, 1, 1, 1]\", flush=True); import os; os._exit(0)' > stats.py", 0.0),
        ("exec cat > stats.py <<'END'\n" + EQUAL + "END", 0.0),
        ("exec cat > stats.py <<'END'\n" + NOSY + MENDED + "END", 1.0),
        ("exec cat > stats.py <<'END'\n" + MENDED + "END", 1.0),
    ],
)
def test_hidden_tests_give_the_reward(
    text: str, reward: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    found = run_program("aider", Fake(tmp_path, text), TASK, "http://127.0.0.1:9/v1", "m")
    assert (found.code, found.reward) == (0, reward), found.output


def test_a_program_sees_no_keys_and_a_home_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    found = run_program("aider", Fake(tmp_path, "env"), TASK, "http://127.0.0.1:9/v1", "m")
    lines = dict(line.split("=", 1) for line in found.output.splitlines() if "=" in line)
    assert "ANTHROPIC_API_KEY" not in lines
    assert lines["OPENAI_API_KEY"] == "proxied"
    assert lines["HOME"].endswith("/home") and not Path(lines["HOME"]).exists()


def test_what_a_program_started_ends_with_it(tmp_path: Path):
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    text = f"exec 9>{held}\nsleep 1000 >/dev/null 2>&1 &"
    found = run_program("aider", Fake(tmp_path, text), TASK, "http://127.0.0.1:9/v1", "m")
    assert found.code == 0
    poll = select.poll()
    poll.register(reader, select.POLLHUP)
    assert poll.poll(20_000), "the process that holds the file still runs"
    os.close(reader)


def test_a_program_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program_agent, "_SECONDS", 0.2)
    text = "sleep 1000 & wait"
    found = run_program("aider", Fake(tmp_path, text), TASK, "http://127.0.0.1:9/v1", "m")
    assert (found.code, found.reward) == (124, 0.0)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_version_is_pinned(program: Program):
    parts: Any = program.version.split(".")
    assert len(parts) == 3 and all(part.isdigit() for part in parts)
