"""No request holds the event loop of the server: heavy ones run in slices or in threads.

``tests/benchmark/bench_heavy_requests.py`` measures more of them, at full size.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import unmeasured

BENCHMARK = Path(__file__).parents[3] / "benchmark/bench_heavy_requests.py"
SIZES = ["--rollouts", "20000", "--spans", "20000", "--no-memory"]
HEAVY = [
    "all rollouts",
    "all rollouts of a status",
    "all rollouts, the newest first",
    "all rollouts sorted by reward",
    "all rollouts by a part or a mode",
    "all spans of a rollout by name",
    "a search for 100,000 ids",
    "a wait for 100,000 ids",
    "calls of a rollout with many spans",
    "summaries of rollouts with many spans",
    "rollouts by a text in their spans",
    "claims of 10,000",
    "5,000 tasks",
    "resources of 8 MB of escapes",
    "OTLP of 1 span, 30,000 attributes",
]


@pytest.mark.timing
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_no_request_holds_the_loop(store: str):
    """CPU time of the longest callback, a fifth of the sizes that agl is made for."""
    # In a process of its own, since a server changes when garbage is collected.
    done = subprocess.run(
        [sys.executable, BENCHMARK, *SIZES, "--store", store, *HEAVY],
        env=unmeasured(),
        capture_output=True,
        text=True,
        check=True,
    )
    held = dict(re.findall(r"^(.{38}) \d+ .*held +([\d.]+) ms", done.stdout, re.MULTILINE))
    assert {name.strip() for name in held} == set(HEAVY)
    assert {name: ms for name, ms in held.items() if float(ms) > 100} == {}
