"""Trains the model with GRPO and shows the learning curve.

python examples/rl_digits/main.py
python examples/rl_digits/main.py --seeds 0 1 2      # three runs, one after another
python examples/rl_digits/main.py --overlap 1        # rollouts run while the model trains
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
from typing import Any, Literal

# Set before the import of PyTorch: two processes with two threads each would compete for the
# cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import agl_core as agl
from agl_algo_grpo import GRPO
from digits import train_tasks, val_tasks, visit
from make_model import make_model

__all__ = ["train"]


def train(
    folder: Path,
    *,
    seed: int,
    steps: int,
    runners: int,
    overlap: int = 0,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    server: Any = None,
) -> dict[str, Any]:
    """Train a new model; return the results.

    Args:
        folder: Folder for all files of the run.
        seed: Seed of the model, of the order of tasks, and of sampling.
        steps: Number of training steps.
        runners: Number of processes that run the agent.
        overlap: 1: the next step's rollouts run while the model trains.
        dtype: Type of the computation of the trainer and of the default server; ``auto`` is
            bfloat16 on a GPU, else float32.
        server: The LLM server; by default the Hugging Face server.
    """
    base = make_model(folder / "base", seed=seed)
    began = time.monotonic()
    algorithm = GRPO(
        model=base,
        steps=steps,
        tasks_per_step=16,
        group_size=8,
        learning_rate=1e-3,
        max_tokens=16,
        seed=seed,
        overlap=overlap,
        dtype=dtype,
        threads=1,
        server=server or {"type": "hf", "threads": 1, "seed": seed, "dtype": dtype},
        output_dir=str(folder),
        checkpoint_every=10,
    )
    trainer = agl.Trainer(
        algorithm=algorithm,
        adapter="trajectory",
        tracer={"type": "otel", "model_calls": "direct"},  # the proxy records the others
        strategy={"type": "cs", "start_method": "spawn", "server_port": 0},
        n_runners=runners,
        concurrency=16,  # the agent's client serves any number of threads
    )
    trainer.fit(visit, train_tasks(), val_dataset=val_tasks())
    if trainer.interrupted:
        print(f"interrupted; the steps so far are in {folder}", file=sys.stderr)
        sys.exit(130)  # as a shell reports Ctrl+C
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rewards = [float(row["reward"]) for row in rows]
    return {
        "seed": seed,
        "first": rewards[0],
        "last": sum(rewards[-3:]) / len(rewards[-3:]),
        "validation": float(rows[-1]["val_reward"]),
        "logprob_delta": max(float(row["logprob_delta"] or 0) for row in rows),
        "seconds": time.monotonic() - began,
        "rewards": rewards,
        "folder": str(folder),
    }


def draw(rewards: list[float], width: int = 50) -> str:
    """Return a text plot with one line per step."""
    lines = [
        f"{step:4}  {reward:5.3f}  {'█' * round(reward * width)}"
        for step, reward in enumerate(rewards)
    ]
    return "\n".join(["step  mean reward", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny model with GRPO.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--overlap", type=int, default=0, choices=(0, 1))
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--output", type=Path, default=Path("agl-runs/rl_digits"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object per seed")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("agl_algo_grpo").setLevel(logging.INFO)
    outcomes = [
        train(
            options.output / f"seed-{seed}",
            seed=seed,
            steps=options.steps,
            runners=options.runners,
            overlap=options.overlap,
            dtype=options.dtype,
        )
        for seed in options.seeds
    ]
    if options.json:
        print(*map(json.dumps, outcomes), sep="\n")
        return
    for outcome in outcomes:
        print(f"seed {outcome['seed']}, curve in {outcome['folder']}/curve.png")
        print(draw(outcome["rewards"]) + "\n")
    print("seed  first step  last three  validation  seconds  log-probabilities differ by")
    for outcome in outcomes:
        means = f"{outcome['first']:10.3f} {outcome['last']:11.3f} {outcome['validation']:11.3f}"
        delta = f"{outcome['logprob_delta']:8.0e}"
        print(f"{outcome['seed']:4}  {means} {outcome['seconds']:8.0f}  {delta}")


if __name__ == "__main__":
    main()
