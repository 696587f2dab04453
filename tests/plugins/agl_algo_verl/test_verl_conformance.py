"""VERL under the conformance suite for algorithms, in this process, with agents in threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from agl_algo_verl import VERL
from agl_core.agent import LitAgent, rollout
from agl_core.types import LLM
from agl_testing.algorithm import AlgorithmSuite

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # of verl, Ray and torch
]


@pytest.fixture(autouse=True)
def surroundings(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a folder per test and a long timeout for Ray; remove Ray's environment variables."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "180")
    monkeypatch.setenv("TRANSFER_QUEUE_ENABLE", "1")
    yield
    import ray

    assert not ray.is_initialized()
    os.environ.pop("RAY_ADDRESS", None)


class TestVERL(AlgorithmSuite):
    flags = frozenset({"resources"})

    @pytest.fixture
    def algorithm(self, tiny_model: Path) -> VERL[Any]:
        config = {
            "trainer": {"device": "cpu", "logger": ["console"], "total_training_steps": 1},
            "data": {"train_batch_size": 2, "max_prompt_length": 128, "max_response_length": 64},
            "algorithm": {"adv_estimator": "grpo"},
            "actor_rollout_ref": {
                "model": {"path": str(tiny_model)},
                "actor": {"ppo_mini_batch_size": 2, "ppo_micro_batch_size_per_gpu": 4},
                "rollout": {"n": 2, "log_prob_micro_batch_size_per_gpu": 4},
            },
        }
        return VERL(config, max_failed_groups=2, max_retries=0)

    @pytest.fixture
    def agent(self) -> LitAgent[Any]:
        @rollout
        def even(task: int, llm: LLM) -> float:
            with openai.OpenAI(base_url=llm.endpoint, api_key="none") as client:
                client.chat.completions.create(
                    model=llm.model,
                    messages=[{"role": "user", "content": f"is {task} even?"}],
                    max_tokens=4,
                )
            return float(task % 2 == 0)

        return even
