"""The agent's folder: reading, editing, and running its code in a process of its own.

The agent's file tools cannot leave the folder. The code that the agent writes runs with the rights
of this program: with a model that you do not trust, run the recipe in a container.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["Report", "Sandbox", "SandboxError"]

_SECONDS = 20
_MAX_CHARACTERS = 4_000

# Run by a fresh interpreter with the agent's folder.
_TESTS = """
import json, sys, unittest
sys.path.insert(0, sys.argv[1])
suite = unittest.defaultTestLoader.discover(sys.argv[1], "test_*.py")
result = unittest.TextTestRunner(sys.stderr, verbosity=0).run(suite)
failed = len(result.failures) + len(result.errors)
print("\\n" + json.dumps([result.testsRun, failed]))
"""

# The agent's folder, then what the expressions need, then the expressions.
_VALUES = """
import json, sys, traceback
sys.path.insert(0, sys.argv[1])
exec(sys.argv[2])
values = []
for expression in sys.argv[3:]:
    try:
        values.append(json.loads(json.dumps(eval(expression))))
    except Exception:
        traceback.print_exc()
        values.append(None)
print("\\n" + json.dumps(values))
"""


class SandboxError(Exception):
    """A file operation that is not possible; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run of tests: how many ran, how many passed, and the output for people."""

    run: int
    passed: int
    output: str


class Sandbox:
    """A folder with a small project; a context manager that deletes it at the end.

    Args:
        files: Texts by relative path.
    """

    def __init__(self, files: dict[str, str]) -> None:
        self._folder = TemporaryDirectory(prefix="agl-coding-")
        self._root = Path(self._folder.name).resolve()
        _write(self._root, files)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def list_files(self) -> str:
        """Return the paths of all files, one per line."""
        paths = (path for path in self._root.rglob("*") if "__pycache__" not in path.parts)
        return "\n".join(sorted(str(p.relative_to(self._root)) for p in paths if p.is_file()))

    def read(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            SandboxError: There is no such file in the folder.
        """
        try:
            return self._inside(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SandboxError(f"{path}: {type(error).__name__}") from None

    def replace(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once in a file; return what to tell the model.

        Raises:
            SandboxError: The text does not occur exactly once, or there is no such file.
        """
        text = self.read(path)
        if not old or text.count(old) != 1:
            raise SandboxError(f"{path}: old_text occurs {text.count(old)} times; it must once")
        self._inside(path).write_text(text.replace(old, new), encoding="utf-8")
        return f"{path}: replaced"

    def test(self) -> Report:
        """Run the project's own tests.

        The result is for the model, not for a reward: the code under test runs in the process
        that counts, and can print a result of its own.

        A run that does not end within 20 seconds, or ends without a result, has passed nothing.
        """
        result, output = self._run(_TESTS)
        match result:
            case [int(run), int(failed)]:
                return Report(run, run - failed, output)
            case _:
                return Report(0, 0, output)

    def check(self, setup: str, checks: Sequence[Sequence[Any]]) -> Report:
        """Compare values that the agent's code computes with the right ones.

        The code sees the expressions and returns values as JSON. It does not see the right values,
        and the comparison is in this process.

        Args:
            setup: Code that the expressions need, such as imports.
            checks: Expressions with their right values.
        """
        result, output = self._run(_VALUES, setup, *(expression for expression, _ in checks))
        match result:
            case [*values] if len(values) == len(checks):
                pairs = zip(values, checks, strict=True)
                passed = sum(value == right for value, (_, right) in pairs)
                return Report(len(checks), passed, output)
            case _:
                return Report(len(checks), 0, output)

    def _run(self, code: str, *arguments: str) -> tuple[Any, str]:
        """Return what code prints as JSON in its last line, or None, and its other output."""
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", "-c", code, str(self._root), *arguments],
                cwd=self._root,
                env={"PATH": os.environ.get("PATH", "")},  # no keys for the agent's code
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"the code did not end within {_SECONDS} s"
        output = done.stderr[-_MAX_CHARACTERS:]
        try:
            return json.loads(done.stdout.splitlines()[-1]), output
        except (IndexError, ValueError):
            return None, output

    def _inside(self, path: str) -> Path:
        found = (self._root / path).resolve()
        if not found.is_relative_to(self._root):
            raise SandboxError(f"{path} is outside of the project")
        return found


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
