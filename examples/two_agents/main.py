"""Trains two policies from one set of rollouts and shows the learning curve.

python examples/two_agents/main.py
python examples/two_agents/main.py --own                # each is rewarded for its own part
python examples/two_agents/main.py --shuffle reader     # control: the reader cannot learn
python examples/two_agents/main.py --seeds 0 1 2 --controls   # all of it, and what it shows
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

# Set before the import of PyTorch: two processes with two threads each would compete for the
# cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import agl_core as agl
from agl_algo_grpo import GRPO, LoRAConfig
from make_model import FINDING, QUESTION, make_model, measure
from team import POLICIES, Team, make_tasks

__all__ = ["train"]


GAIN = 0.3
"""Rise of a reward, or of the probability of doing its part, that counts as having learned."""


def train(
    folder: Path, *, seed: int, steps: int, runners: int, own: bool, shuffle: str | None
) -> dict[str, Any]:
    """Train both policies from one new model; return the results.

    Args:
        folder: Folder for all files of the run.
        seed: Seed of the model, of the order of tasks, and of sampling.
        steps: Number of training steps.
        runners: Number of processes that run the agent.
        own: Reward each policy for its own part.
        shuffle: Policy that gets the rewards of other rollouts.
    """
    team = Team(own=own, shuffle=shuffle)
    base = make_model(folder / "base", seed=seed)
    began = time.monotonic()
    algorithm = GRPO(
        # Each policy is an adapter of its own on the one model, so one server serves both.
        {name: {"model": base, "reward": name} for name in POLICIES},
        lora=LoRAConfig(r=8, alpha=16),
        steps=steps,
        tasks_per_step=32,
        group_size=8,
        learning_rate=5e-3,
        max_tokens=2,
        seed=seed,
        threads=1,
        server={"type": "hf", "threads": 1, "seed": seed},
        output_dir=str(folder),
    )
    trainer = agl.Trainer(
        algorithm=algorithm,
        adapter="trajectory",
        strategy={"type": "cs", "start_method": "spawn", "server_port": 0},
        n_runners=runners,
        concurrency=16,  # the agent's client serves any number of threads
    )
    trainer.fit(team, make_tasks(1000, seed=1), val_dataset=make_tasks(100, seed=2))
    if trainer.interrupted:
        print(f"interrupted; the steps so far are in {folder}", file=sys.stderr)
        sys.exit(130)  # as a shell reports Ctrl+C
    rows = {name: read(folder / name / "metrics.csv") for name in POLICIES}
    parts = dict(zip(POLICIES, (QUESTION, FINDING), strict=True))
    return {
        "seed": seed,
        "shuffled": shuffle,
        "rewards": {name: [float(row["reward"]) for row in rows[name]] for name in POLICIES},
        "validation": {name: float(rows[name][-1]["val_reward"]) for name in POLICIES},
        # How often each does its part, before and after, whatever its reward was.
        "parts": {
            name: [measure(base, text), measure(base, text, folder / name / "model")]
            for name, text in parts.items()
        },
        "logprob_delta": max(float(row["logprob_delta"]) for part in rows.values() for row in part),
        "seconds": time.monotonic() - began,
        "folder": str(folder),
    }


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def draw(rewards: dict[str, list[float]], width: int = 40) -> str:
    """Return a text plot with one line per step: the rewards of each policy."""
    lines = ["step  " + "  ".join(f"{name:{width + 6}}" for name in rewards)]
    for step, values in enumerate(zip(*rewards.values(), strict=True)):
        bars = (f"{value:5.3f} {'█' * round(value * width):{width}}" for value in values)
        lines.append(f"{step:4}  " + "  ".join(bars))
    return "\n".join(lines)


def gain(rewards: list[float]) -> float:
    """Return the mean of the last three steps minus the first step."""
    return sum(rewards[-3:]) / len(rewards[-3:]) - rewards[0]


def summary(outcomes: list[dict[str, Any]]) -> str:
    """Return a table of all runs, and in how many of them the policies learned."""
    lines = ["| run | reward of picker, reader | part of picker | part of reader |"]
    lines.append("| --- | --- | --- | --- |")
    counts = {"both rewards": [0, 0], "a reward": [0, 0], "the part with shuffled rewards": [0, 0]}

    def count(what: str, learned: bool) -> None:
        counts[what][0] += learned
        counts[what][1] += 1

    for outcome in outcomes:
        shuffled, rewards = outcome["shuffled"], outcome["rewards"]
        learned = [gain(values) >= GAIN for values in rewards.values()]
        if shuffled is None:
            count("both rewards", all(learned))
        else:
            before, after = outcome["parts"][shuffled]
            count("a reward", any(learned))
            count("the part with shuffled rewards", after - before >= GAIN)
        name = f"seed {outcome['seed']}" + (f", {shuffled} shuffled" if shuffled else "")
        changes = ", ".join(f"{gain(values):+.2f}" for values in rewards.values())
        parts = [f"{before:.2f} to {after:.2f}" for before, after in outcome["parts"].values()]
        lines.append(f"| {name} | {changes} | {parts[0]} | {parts[1]} |")
    lines.append("")
    for what, (learned, runs) in counts.items():
        if runs:
            kind = "runs" if what == "both rewards" else "controls"
            lines.append(f"{what} rose by {GAIN} or more in {learned} of {runs} {kind}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train two tiny policies together with GRPO.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--own", action="store_true", help="reward each policy for its own part")
    parser.add_argument(
        "--shuffle", choices=POLICIES, help="give this policy the rewards of other rollouts"
    )
    parser.add_argument(
        "--controls", action="store_true", help="also shuffle the rewards of each policy in turn"
    )
    parser.add_argument("--output", type=Path, default=Path("agl-runs/two_agents"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object per seed")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("agl_algo_grpo").setLevel(logging.INFO)
    outcomes = [
        train(
            options.output / (f"seed-{seed}" + (f"-{shuffle}-shuffled" if control else "")),
            seed=seed,
            steps=options.steps,
            runners=options.runners,
            own=options.own,
            shuffle=shuffle,
        )
        for control, shuffle in [
            (False, options.shuffle),
            *((True, name) for name in POLICIES if options.controls),
        ]
        for seed in options.seeds
    ]
    if options.json:
        print(*map(json.dumps, outcomes), sep="\n")
        return
    for outcome in outcomes:
        print(f"seed {outcome['seed']}, curves in {outcome['folder']}/*/curve.png")
        print(draw(outcome["rewards"]) + "\n")
    print("seed  policy  first step  last three  validation  its part before  after  seconds")
    for outcome in outcomes:
        for name, (before, after) in outcome["parts"].items():
            rewards, validation = outcome["rewards"][name], outcome["validation"][name]
            last = sum(rewards[-3:]) / len(rewards[-3:])
            means = (
                f"{rewards[0]:10.3f} {last:11.3f} {validation:11.3f} {before:16.2f} {after:6.2f}"
            )
            print(f"{outcome['seed']:4}  {name:6}  {means} {outcome['seconds']:8.0f}")
    if options.controls:
        print("\n" + summary(outcomes))


if __name__ == "__main__":
    main()
