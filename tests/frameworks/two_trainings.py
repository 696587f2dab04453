"""Runs ``leftovers.py`` in separate processes, and checks their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["assert_nothing_is_left"]

PROGRAM = Path(__file__).parent / "leftovers.py"
FRAMEWORKS = [
    "openai_sdk",
    "openai_stream",
    "anthropic_sdk",
    "langchain_agent",
    "openai_agents",
    "crewai_crew",
]


def assert_nothing_is_left(tracers: Sequence[str]) -> None:
    """Train twice with each tracer; tracers run concurrently, each in a process of its own."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), tracer, *FRAMEWORKS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_API_KEY": "", "AGENTOPS_API_KEY": "never-to-be-used"},
        )
        for tracer in tracers
    ]
    try:
        finished = [process.communicate(timeout=280) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for tracer, process, (out, errors) in zip(tracers, processes, finished, strict=True):
        assert process.returncode == 0, errors[-3000:]
        report = json.loads(out.splitlines()[-1])
        for framework in FRAMEWORKS:
            found = report[framework]
            # Both trainings were traced: two calls for each of two tasks.
            assert found["calls"] == [4, 4], (tracer, framework)
            assert found["left"] == [], (tracer, framework)
            assert found["same_answer"], (tracer, framework)
            assert found["other_requests"] == [], (tracer, framework)
