"""Adds the example's folder to the import path, since its modules import each other by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "room_booking"
sys.path.insert(0, str(EXAMPLE))

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start Python without a real endpoint, in an empty folder."""

    def begin(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


@pytest.fixture
def run(start: Start) -> Callable[..., tuple[int, str, str]]:
    """Run Python to its end, and return its exit code and both outputs."""

    def finish(*arguments: str) -> tuple[int, str, str]:
        with start(*arguments) as process:
            out, err = process.communicate()
        return process.returncode, out, err

    return finish
