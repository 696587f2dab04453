"""Training improves the reward, on a CPU with real servers. Slow; run by `dev.py heavy`.

One of these is in a gate; the others, of minutes each, are marked ``full``.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from openai import OpenAI

import agl_core as agl
from agl_algo_grpo import GRPO, LoRAConfig
from agl_tiny_model import VLLM_CPU_ARGS, VLLM_CPU_ENV

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(700),
    # Transformers raises this warning when PEFT reads the attribute.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning"),
]

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(name: str, *arguments: str | Path) -> dict[str, Any]:
    """Run an example in a process of its own; return the JSON object that it ends with."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--json", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=680,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    print(outcome)
    return outcome


def command_of(page: Path) -> list[str]:
    """Return the arguments of the command of an example that a page shows."""
    found = re.findall(r"^```sh heavy\npython examples/(.+)\n```$", page.read_text(), re.MULTILINE)
    assert len(found) == 1
    return found[0].split()


@pytest.mark.full
def test_a_tiny_model_learns_to_use_a_tool(tmp_path: Path):
    """Run the command of the tutorial, which trains one seed."""
    name, *options = command_of(EXAMPLES.parent / "docs/tutorials/train-on-a-cpu.md")
    outcome = run_example(name, *options, "--output", tmp_path)
    assert outcome["last"] - outcome["first"] >= 0.3
    assert outcome["validation"] - outcome["first"] >= 0.3
    assert outcome["logprob_delta"] <= 1e-4
    assert outcome["seconds"] < 600
    assert (tmp_path / "seed-0" / "curve.png").is_file()


def test_a_tiny_model_learns_from_rollouts_that_overlap_with_training(tmp_path: Path):
    options = ("--overlap", "1", "--steps", "9", "--output", tmp_path)
    outcome = run_example("rl_digits/main.py", *options)
    assert outcome["last"] - outcome["first"] >= 0.2


@pytest.mark.full
def test_a_tiny_model_learns_from_a_late_reward_with_and_without_forks(tmp_path: Path):
    """Run one seed; `python examples/late_reward/main.py` runs three, and the other task."""
    options = ("--decisive", "last", "--seeds", "0", "--tokens", "18000", "--output", tmp_path)
    outcome = run_example("late_reward/main.py", *options)
    for curve in outcome["curves"].values():
        assert gain([reward for _, reward in curve]) >= 0.15


def gain(rewards: Sequence[float]) -> float:
    """Return the mean of the last three steps less the first step."""
    return fmean(rewards[-3:]) - rewards[0]


@pytest.mark.full
def test_two_policies_learn_their_parts_together(tmp_path: Path):
    outcome = run_example("two_agents/main.py", "--steps", "10", "--output", tmp_path)
    for before, after in outcome["parts"].values():
        assert after - before >= 0.3
    assert all(gain(rewards) >= 0.3 for rewards in outcome["rewards"].values())
    assert outcome["logprob_delta"] <= 1e-4


@pytest.mark.full
def test_two_policies_do_not_learn_if_the_rewards_of_one_are_shuffled(tmp_path: Path):
    options = ("--shuffle", "reader", "--steps", "8", "--output", tmp_path)
    outcome = run_example("two_agents/main.py", *options)
    assert gain(outcome["rewards"]["picker"]) < 0.3
    before, after = outcome["parts"]["reader"]
    assert after - before < 0.3


def test_the_smallest_model_of_the_gpu_example_is_measured():
    options = ("--sizes", "10M", "--servers", "hf", "--steps", "1", "--rollouts", "8")
    outcome = run_example("gpu/run.py", *options)
    assert outcome["logprob_delta"] <= (1e-4 if outcome["dtype"] == "float32" else 0.5)
    assert outcome["sampled_tokens_per_second"] > 0
    assert outcome["trained_tokens_per_second"] > 0
    assert outcome["peak_bytes"] > 4 * outcome["parameters"]


@agl.rollout
def talk(task: int, llm: agl.LLM) -> float:
    """Call the model twice; the reward grows with the number of distinct characters."""
    messages: Any = [{"role": "user", "content": "How are you?"}]
    text = ""
    with OpenAI(base_url=llm.endpoint, api_key="-", timeout=120) as client:
        for _ in range(2):
            answer = client.chat.completions.create(model=llm.model, messages=messages)
            text = answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "So?"}]
    return len(set(text)) / 10


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has a real vLLM."""
    python = os.environ.get("AGL_TEST_VLLM_PYTHON", "")
    if not Path(python).is_file():
        pytest.fail(
            f"AGL_TEST_VLLM_PYTHON is {python!r}, which is not a Python that has vLLM; "
            "run `python3 dev.py heavy agl_algo_grpo`"
        )
    return python


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_vllm_samples_from_the_model_in_training(
    taught: Path, tmp_path: Path, vllm_python: str, lora: bool
):
    server = {
        "type": "vllm",
        "python": vllm_python,
        "lora": lora,
        "args": VLLM_CPU_ARGS,
        "env": VLLM_CPU_ENV,
    }
    algorithm = GRPO(
        model=taught,
        steps=4,
        tasks_per_step=2,
        group_size=8,
        learning_rate=2e-2 if lora else 2e-3,
        max_tokens=12,
        lora=LoRAConfig(r=8, alpha=16) if lora else None,
        threads=1,
        server=server,
        output_dir=str(tmp_path),
    )
    trainer = agl.Trainer(algorithm=algorithm, adapter="trajectory", strategy="shm", n_runners=8)
    trainer.fit(talk, [1, 2, 3, 4])
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        print({key: row[key] for key in ("step", "reward", "logprob_delta", "rows", "seconds")})
    assert [int(row["rollouts"]) for row in rows] == [16] * 4
    assert all(float(row["logprob_delta"]) <= 1e-4 for row in rows)
    # The weights changed: later answers come from another distribution.
    assert any(float(row["grad_norm"]) > 0 for row in rows)
    assert rows[0]["entropy"] != rows[-1]["entropy"]
