"""Training improves the reward, on a CPU with real servers. Slow; run by `dev.py heavy`."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import agl_core as agl
from agl_algo_grpo import GRPO, LoRAConfig
from agl_testing.tiny_model import VLLM_CPU_ARGS, VLLM_CPU_ENV

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(700),
    # Transformers raises this warning when PEFT reads the attribute.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning"),
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "rl_digits" / "main.py"


def test_a_tiny_model_learns_to_use_a_tool(tmp_path: Path):
    """Run one seed; `python examples/rl_digits/main.py --seeds 0 1 2` runs three."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "14", "--json", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=680,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    print(outcome)
    assert outcome["last"] - outcome["first"] >= 0.3
    assert outcome["validation"] - outcome["first"] >= 0.3
    assert outcome["logprob_delta"] <= 1e-4
    assert outcome["seconds"] < 600
    assert (tmp_path / "seed-0" / "curve.png").is_file()


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
