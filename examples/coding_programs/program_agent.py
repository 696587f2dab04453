"""A coding agent from npm or PyPI as an agent of agl: one run of the program is one rollout.

The reward is the share of hidden tests that pass in its folder when it has ended.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import agl_core as agl
from program_install import Installed, install
from programs import PROGRAMS, Start

__all__ = ["CACHE", "TASK", "Outcome", "run_program", "solve"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "agl-programs"
"""Where the example installs programs."""
TASK: dict[str, Any] = {
    "request": "The function median in stats.py is wrong for lists of even length. Mend it.",
    "files": {
        "stats.py": "def median(numbers):\n"
        "    ordered = sorted(numbers)\n"
        "    return ordered[len(ordered) // 2]\n"
    },
    "hidden": [
        ["median([3])", 3],
        ["median([3, 1, 2])", 2],
        ["median([1, 4])", 2.5],
        ["median([4, 1, 2, 3])", 2.5],
    ],
}
"""A small task. ``hidden`` has expressions with their right values."""
_SECONDS = 300
_CHECK_SECONDS = 20
_MAX_OUTPUT = 4_000

# Run by a fresh interpreter: the project's folder, then the hidden expressions. It imports code of
# the program, which can print what it likes, so it gets no right values and returns no verdict.
_VALUES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from stats import median
print("\\n" + json.dumps([eval(text) for text in sys.argv[2:]]))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run: its exit code, what it printed, and the share of hidden tests that pass."""

    code: int
    output: str
    reward: float


@agl.rollout
def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    """Let the program of a task solve it."""
    program = PROGRAMS[task["program"]]
    outcome = run_program(task["program"], install(program, CACHE), task, llm.endpoint, llm.model)
    agl.emit_message(f"exit code {outcome.code}\n{outcome.output}")
    return outcome.reward


def run_program(
    name: str,
    installed: Installed,
    task: dict[str, Any],
    base_url: str,
    model: str,
    env: dict[str, str] | None = None,
) -> Outcome:
    """Run a program on a task, in a folder and a home that are deleted at the end.

    Args:
        name: Its short name.
        installed: Where it is.
        task: See :data:`TASK`.
        base_url: URL of the model, with the attempt in its path.
        model: The model's name there.
        env: Further variables.
    """
    with TemporaryDirectory(prefix="agl-coding-", ignore_cleanup_errors=True) as place:
        folder, home = Path(place) / "project", Path(place) / "home"
        folder.mkdir()
        home.mkdir()
        for path, text in task["files"].items():
            (folder / path).write_text(text)
        start = Start(folder, home, base_url, model, task["request"], tuple(task["files"]))
        command = PROGRAMS[name].command(start)
        variables = {**installed.environment(home), **command.env, **(env or {})}
        code, output = _run([str(installed.binary), *command.arguments], folder, variables)
        if code is None:
            return Outcome(124, f"it did not end within {_SECONDS} s", 0.0)
        return Outcome(code, output[-_MAX_OUTPUT:], _reward(folder, task["hidden"]))


def _run(command: list[str], folder: Path, env: dict[str, str]) -> tuple[int | None, str]:
    """Run a program and return its exit code, None after the time limit, and what it printed.

    All processes that it started end with it, since they would go on to call the model.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a group of processes that can be ended as one
    ) as process:
        end = partial(_kill_group, process.pid)
        atexit.register(end)  # Ctrl+C of the terminal does not reach the group
        try:
            output, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            end()
            atexit.unregister(end)
        return process.returncode, output


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # all of them have ended
        os.killpg(leader, signal.SIGKILL)


def _reward(folder: Path, hidden: list[Any]) -> float:
    expressions = [text for text, _ in hidden]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-c", _VALUES, str(folder), *expressions],
            env={"PATH": os.environ.get("PATH", "")},  # no keys for the program's code
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CHECK_SECONDS,
            check=False,
        )
        values = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):  # it hangs, fails, or ends early
        return 0.0
    if not isinstance(values, list) or len(values) != len(hidden):
        return 0.0
    pairs = zip(values, hidden, strict=True)
    return sum(value == right for value, (_, right) in pairs) / len(hidden)
