"""Trains a tiny model that reasons, with one row per turn and with one row per conversation.

In each of six turns the model thinks ten tokens long and then names the digit that it was asked
for. The agent drops the reasoning, so with ``history="exact"`` each turn is a row of its own; with
``history="continue"`` a conversation is one row. Three ways, three seeds each:

* ``exact``: the default, which computes the common beginnings of rows once;
* ``exact, apart``: the same rows, each computed by itself (``share_prefixes=False``);
* ``continue``.

It prints the reward of each step, and of the updates the tokens and the CPU seconds.

Run ``python tests/benchmark/bench_history.py`` in the environment of ``agl_algo_grpo``. It takes
two to four minutes per run, nine runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

# Set before the import of PyTorch: two processes with two threads each compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from openai import OpenAI

import agl_core as agl
from agl_tiny_model import build_byte_llama, build_byte_tokenizer

WAYS: dict[str, tuple[str, bool]] = {
    "exact": ("exact", True),
    "exact, apart": ("exact", False),
    "continue": ("continue", True),
}
SEEDS = (0, 1, 2)
STEPS = 8
LAST = 3  # steps at the end whose mean is compared
TURNS = 6
THOUGHT = 8  # letters of a thought, before its digit
LISTENS = 0.6  # share of digits in the warm-up that are copied; the others are random

# -- the model -------------------------------------------------------------------------------------


def make_model(folder: Path, seed: int) -> Path:
    """Write a transformer of 200,000 weights that knows the format, unless there is one already.

    It copies six digits in ten.
    """
    if (folder / "config.json").is_file():
        return folder
    import torch  # pyright: ignore[reportMissingImports]

    tokenizer = build_byte_tokenizer(length=512, parts=("<think>", "</think>"))
    model = build_byte_llama(tokenizer, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    rng = random.Random(seed)
    pad = tokenizer.pad_token_id
    for step in range(800):
        # Half of the histories have their reasoning, so that neither way meets a new format.
        texts = [_conversation(rng, keeps=step % 2 == 0) for _ in range(32)]
        parts = [[tokenizer.encode(part, add_special_tokens=False) for part in t] for t in texts]
        rows = [[token for part in row for token in part] for row in parts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        labels = ids.masked_fill(ids == pad, -100)
        if step % 2:  # an answer without its reasoning is no example
            for label, (history, *_) in zip(labels, parts, strict=True):
                label[: len(history)] = -100
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _conversation(rng: random.Random, *, keeps: bool) -> tuple[str, str]:
    """Return the turns before the last as the template renders them, and the last as sampled.

    Args:
        rng: The source of digits and letters.
        keeps: Whether the earlier turns have their reasoning.
    """
    turns: list[str] = []
    for turn in range(TURNS):
        asked = rng.choice("0123456789")
        thought = asked if rng.random() < LISTENS else rng.choice("0123456789")
        said = thought if rng.random() < LISTENS else rng.choice("0123456789")
        letters = "".join(rng.choice("abcdef") for _ in range(THOUGHT))
        reasoning = f"<think>{letters}{thought}</think>" if keeps or turn == TURNS - 1 else ""
        turns.append(f"<|user|>Say {asked}<|end|><|assistant|>{reasoning}{said}<|end|>")
    return "".join(turns[:-1]), turns[-1]


# -- the agent -------------------------------------------------------------------------------------


@agl.rollout
def repeat(task: dict[str, Any], llm: agl.LLM) -> float:
    """Ask for six digits, one after another; the reward is the share of right answers."""
    client = OpenAI(base_url=llm.endpoint, api_key="none", timeout=60)
    messages: list[Any] = []
    right = 0
    for digit in task["digits"]:
        messages.append({"role": "user", "content": f"Say {digit}"})
        completion = client.chat.completions.create(
            model=llm.model, messages=messages, **llm.sampling_parameters
        )
        answer = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": answer})  # without what it thought
        right += answer.strip() == digit
    return right / len(task["digits"])


def make_tasks(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{"digits": [rng.choice("0123456789") for _ in range(TURNS)]} for _ in range(count)]


# -- one run ---------------------------------------------------------------------------------------


def train(way: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Train one model; return its rewards, and the tokens and CPU seconds of its updates."""
    import agl_algo_grpo.update as updates

    seconds: list[float] = []
    plain = updates.update

    def timed(*arguments: Any) -> dict[str, float]:
        began = time.thread_time()  # one thread computes all of an update
        try:
            return plain(*arguments)
        finally:
            seconds.append(time.thread_time() - began)

    updates.update = timed
    history, share = WAYS[way]
    algorithm = {
        "type": "grpo",
        "model": str(make_model(folder / "base", seed)),
        "steps": steps,
        "tasks_per_step": 8,
        "group_size": 8,
        "learning_rate": 1e-3,
        "max_tokens": THOUGHT + 8,
        "seed": seed,
        "threads": 1,
        "share_prefixes": share,
        "server": {"type": "hf", "threads": 1, "seed": seed, "reasoning": True},
        "output_dir": str(folder / way),
    }
    trainer = agl.Trainer(
        algorithm=algorithm,
        adapter="trajectory",
        proxy={"type": "direct", "history": history},
        tracer={"type": "otel", "model_calls": "direct"},
        strategy={"type": "cs", "start_method": "spawn", "server_port": 0},
        n_runners=1,
        concurrency=16,
    )
    trainer.fit(repeat, make_tasks(1000, seed=1))
    with (folder / way / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        "way": way,
        "seed": seed,
        "rewards": [float(row["reward"]) for row in rows],
        "rows": fmean(float(row["rows"]) / float(row["rollouts"]) for row in rows),
        "tokens": sum(float(row["tokens"]) for row in rows),
        "computed_tokens": sum(float(row["computed_tokens"]) for row in rows),
        "cpu_seconds": sum(seconds),
    }


def run(way: str, seed: int, steps: int, folder: str) -> dict[str, Any]:
    """Train in a process of its own."""
    options = ["--one", way, "--seeds", str(seed), "--steps", str(steps), "--output", folder]
    command = [sys.executable, __file__, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# -- the report ------------------------------------------------------------------------------------


def compare(seeds: Sequence[int], steps: int) -> None:
    """Train in all ways, and print a line per run as it ends, and the comparison."""
    print("| way | seed | reward of each step | last | rows | tokens | computed | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:  # with the model that all ways start from
            outcomes = {way: run(way, seed, steps, folder) for way in WAYS}
        for way, found in outcomes.items():
            curve = " ".join(f"{reward:.2f}" for reward in found["rewards"])
            figures = f"{found['tokens']:.0f} | {found['computed_tokens']:.0f}"
            print(
                f"| `{way}` | {seed} | {curve} | {last(found):.2f} | {found['rows']:.1f} "
                f"| {figures} | {found['cpu_seconds']:.1f} |",
                flush=True,
            )
        ours = outcomes["continue"]
        for way in ("exact", "exact, apart"):
            theirs = outcomes[way]
            print(
                f"seed {seed}: the updates of `continue` take "
                f"{ours['cpu_seconds'] / theirs['cpu_seconds']:.0%} of the CPU seconds of `{way}`; "
                f"reward {last(ours):.2f} and {last(theirs):.2f}",
                flush=True,
            )


def last(found: dict[str, Any]) -> float:
    return fmean(found["rewards"][-LAST:])


@pytest.mark.benchmark
def test_the_rows_of_a_conversation() -> None:
    pytest.importorskip("agl_algo_grpo", reason="agl_algo_grpo has an environment of its own")
    compare(SEEDS, STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare one row per turn and per conversation.")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--one", choices=list(WAYS), help="train once, and print JSON")
    parser.add_argument("--output", type=Path, help="folder of its files")
    options = parser.parse_args()
    if options.one:
        seed = options.seeds[0]
        print(json.dumps(train(options.one, seed, options.steps, options.output)))
    else:
        compare(options.seeds, options.steps)


if __name__ == "__main__":
    main()
