"""Compares the learning curve of GRPO with ``overlap=1`` with those without overlap.

It trains ``examples/rl_digits`` with three seeds each way and prints the mean reward of every step,
the band of the runs without overlap (the lowest and the highest of them at each step), and how far
each run with overlap leaves the band. The rollouts of a step with overlap come from weights that
are one update older, so it also prints that comparison by weights: step 5 with the band of step 4.

The band of three runs is narrow: a fourth run of the same kind would be in it at half of the steps.

Run ``python tests/benchmark/bench_overlap.py`` in the environment of ``agl_algo_grpo``. It takes
about a minute per run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_digits" / "main.py"
SEEDS = (0, 1, 2)
STEPS = 12
LAST = 3  # steps at the end whose mean is compared, too

Curve = Sequence[float]


def train(overlap: int, seeds: Sequence[int], steps: int) -> dict[int, Curve]:
    """Return the mean reward of each step, by seed."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--overlap", str(overlap), "--steps", str(steps), "--output", folder, "--json"]
        command = [sys.executable, str(EXAMPLE), *options, "--seeds", *map(str, seeds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    outcomes = map(json.loads, done.stdout.splitlines()[-len(seeds) :])
    return {outcome["seed"]: outcome["rewards"] for outcome in outcomes}


def band(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """Return the lowest and the highest value at each step."""
    return [(min(values), max(values)) for values in zip(*curves, strict=True)]


def place(curve: Curve, limits: Sequence[tuple[float, float]]) -> str:
    """Return in words how a curve lies to a band."""
    inside = sum(low <= value <= high for value, (low, high) in zip(curve, limits, strict=True))
    below = max(low - value for value, (low, _) in zip(curve, limits, strict=True))
    above = max(value - high for value, (_, high) in zip(curve, limits, strict=True))
    far = [f"up to {by:.2f} {side}" for by, side in ((below, "below"), (above, "above")) if by > 0]
    return f"{inside} of {len(curve)} steps in the band" + "".join(f", {text}" for text in far)


def row(name: str, values: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"


def numbers(curve: Curve) -> list[str]:
    return [f"{value:.2f}" for value in curve]


def report(without: dict[int, Curve], overlapping: dict[int, Curve]) -> str:
    """Return the table of all curves, and the comparison."""
    limits = band(list(without.values()))
    lines = [row("step", [str(step) for step in range(len(limits))])]
    lines.append(row("---", ["---"] * len(limits)))
    lines += [row(f"`overlap=0`, seed {seed}", numbers(c)) for seed, c in without.items()]
    lines.append(row("their band", [f"{low:.2f} to {high:.2f}" for low, high in limits]))
    lines += [row(f"`overlap=1`, seed {seed}", numbers(c)) for seed, c in overlapping.items()]
    # The first rollouts of a run with overlap come from the same weights as without.
    older = [limits[0], *limits[:-1]]
    curves = list(without.values())
    ends = {
        "by step": [fmean(curve[-LAST:]) for curve in curves],
        "by weights": [fmean(curve[-LAST - 1 : -1]) for curve in curves],
    }
    for seed, curve in overlapping.items():
        lines.append(f"\nseed {seed} with overlap:")
        for name, at in (("by step", limits), ("by weights", older)):
            low, high = min(ends[name]), max(ends[name])
            lines.append(
                f"  {name}: {place(curve, at)}; "
                f"mean of the last {LAST} {fmean(curve[-LAST:]):.2f}, band {low:.2f} to {high:.2f}"
            )
    return "\n".join(lines)


@pytest.mark.benchmark
def test_the_curve_with_overlap() -> None:
    pytest.importorskip("agl_algo_grpo", reason="agl_algo_grpo has an environment of its own")
    compare(SEEDS, SEEDS, STEPS)


def compare(seeds: Sequence[int], overlap_seeds: Sequence[int], steps: int) -> None:
    print("\n" + report(train(0, seeds, steps), train(1, overlap_seeds, steps)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the curves with and without overlap.")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--overlap-seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    compare(options.seeds, options.overlap_seeds, options.steps)


if __name__ == "__main__":
    main()
