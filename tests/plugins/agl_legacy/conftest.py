"""Runs the scripts of 0.3 with ``python -m agl_legacy`` and simulated models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agl_scripted import ScriptedModels

SCRIPTS = Path(__file__).parent / "scripts"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with ScriptedModels() as server:
        yield server


@pytest.fixture
def start(models: ScriptedModels, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a script, or another module; all are ended at the end."""
    with ExitStack() as stack:

        def begin(*words: str, module: str = "agl_legacy", **env: Any) -> subprocess.Popen[str]:
            if module == "agl_legacy":
                words = (str(SCRIPTS / words[0]), *words[1:])
            process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env={
                    **os.environ,
                    "OPENAI_BASE_URL": models.base_url,
                    "OPENAI_API_KEY": "none",
                    **{name: str(value) for name, value in env.items()},
                },
            )
            stack.callback(_end, process)
            return process

        yield begin


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=20)


@pytest.fixture
def output_of(start: Start) -> Callable[..., str]:
    """Return a function that runs a script to its end and returns what it printed."""

    def run(*words: str, **env: Any) -> str:
        process = start(*words, **env)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, output + errors
        return output

    return run
