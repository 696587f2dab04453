"""``examples/rl_digits`` learns in bfloat16, with server, proxy and agents as in a real run."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from tests.plugins.agl_algo_grpo.gpu.measures import MEAN_BAR, Bars, Work

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).parents[4] / "examples/rl_digits/main.py"
SECONDS = 150
"""The run has 12 steps of 1 to 3 seconds, after half a minute in which its model is made."""


@pytest.mark.timeout(SECONDS + 30)
def test_rl_digits_learns(work: Work, tmp_path: Path, bars: Bars):
    options = ("--dtype", "bfloat16", "--steps", str(work.learning_steps), "--json")
    done = subprocess.run(
        [sys.executable, PROGRAM, *options, "--output", tmp_path],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    with Path(outcome["folder"], "metrics.csv").open(newline="") as file:
        steps = list(csv.DictReader(file))
    assert len(steps) == work.learning_steps
    mean, p99, largest = (
        [float(step[name]) for step in steps]
        for name in ("logprob_delta_mean", "logprob_delta_p99", "logprob_delta")
    )
    first, last = outcome["first"], outcome["last"]
    bars.figure("rl_digits: reward of the first step, the last three", f"{first:.2f}, {last:.2f}")
    bars.figure("rl_digits: seconds", f"{outcome['seconds']:.0f}")
    bars.at_least("rl_digits: gain", last - first, work.learning_gain)
    bars.at_most("server and trainer, rl_digits: mean difference", fmean(mean), MEAN_BAR)
    bars.figure("… 99th percentile, worst step", f"{max(p99):.4g}")
    bars.figure("… largest", f"{max(largest):.4g}")
    bars.check()
