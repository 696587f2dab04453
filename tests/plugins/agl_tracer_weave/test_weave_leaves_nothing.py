"""After training nothing is instrumented any more, and the agent is what it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parents[2] / "frameworks/leftovers.py"
FRAMEWORKS = [
    "openai_sdk",
    "openai_stream",
    "anthropic_sdk",
    "langchain_agent",
    "openai_agents",
    "crewai_crew",
]


def test_two_trainings_leave_nothing_behind():
    tracers = ["weave", "weave"]  # at once, in two processes
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
