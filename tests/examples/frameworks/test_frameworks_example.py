"""The example of agents in four frameworks: its command, with the simulated model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

MAIN = Path(__file__).parents[3] / "examples/frameworks/main.py"
FRAMEWORKS = ("AutoGen", "CrewAI", "LangGraph", "OpenAI Agents")


@pytest.mark.timeout(300)
def test_every_framework_is_recorded_and_the_better_prompt_wins(tmp_path: Path):
    simulated = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    done = subprocess.run(
        [sys.executable, str(MAIN)],
        cwd=tmp_path,
        env=simulated,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a SIMULATED model answers" in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["framework", "prompt", "reward", "calls", "lookups", "seconds"]
    # Half of the cities have rain, which is the guess of the model that does not look.
    expected = {"short": ["0.50", "1.0", "0.0"], "tool": ["1.00", "2.0", "1.0"]}
    said: dict[str, list[str]] = {}
    for row in rows:
        framework, (prompt, *figures, _) = row[:15].strip(), row[15:].split()
        assert figures == expected[prompt], row
        said.setdefault(framework, []).append(prompt)
    assert said == {framework: ["short", "tool"] for framework in FRAMEWORKS}
