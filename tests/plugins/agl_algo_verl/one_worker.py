"""Runs one training worker of verl without Ray, as a separate program. Prints JSON.

Usage: ``one_worker.py MODEL``. It computes log-probabilities of rows made of spans' tokens, trains
on them with our advantages and weights, and saves and loads a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from agl_algo_verl.config import VERLConfig
from agl_verl_cpu.settings import ENVIRONMENT

os.environ.update(
    ENVIRONMENT,
    RANK="0",
    WORLD_SIZE="1",
    LOCAL_RANK="0",
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT="0",
    RAY_LOCAL_WORLD_SIZE="1",
)
ROWS = 8


def main(model: str) -> dict[str, Any]:
    from verl.utils import tensordict_utils as tu
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    from verl.workers.utils.padding import response_from_nested, response_to_nested

    from agl_algo_verl.advantages import rollout_token_weights
    from agl_algo_verl.queue_rows import row_fields
    from agl_algo_verl.rollout_groups import GroupRow, Prompt
    from agl_algo_verl.rows import Row
    from agl_algo_verl.settings import compose
    from agl_verl_cpu.generation import Generator
    from agl_verl_cpu.workers import CPUActorRolloutRefWorker

    config = compose(VERLConfig(config=_settings(model)))
    worker: Any = CPUActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    generator = Generator(model, seed=3)
    fields, keys = [], []
    for number in range(ROWS):
        prompt = generator.encode([{"role": "user", "content": "x" * number}])
        tokens = list(generator.stream(prompt, 3 + number, 1.0))
        row = Row(
            prompt, [t.id for t in tokens], [1] * len(tokens), [t.logprob for t in tokens], None
        )
        place = GroupRow(number % 2, 0, row, float(number % 2), 1)
        fields.append(row_fields(Prompt(f"g{number // 2}", 0, 1), place, {"data_source": "x"}))
        keys.append(f"g{number // 2}_{number % 2}_0")

    def batch() -> Any:
        return list_of_dict_to_tensordict([dict(row) for row in fields])

    def logprobs() -> Any:
        data = batch()
        tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False, temperature=1.0)
        found = tu.get(worker.compute_log_prob(data), "log_probs")
        return response_from_nested(found, data["response_mask"])

    before = logprobs()
    sampled = torch.cat([row["rollout_log_probs"] for row in fields])
    gap = (before.values() - sampled).abs().max().item()

    data = batch()
    mask = data["response_mask"]
    padded = mask.to_padded_tensor(0)
    signs = torch.tensor([1.0 if number % 2 else -1.0 for number in range(ROWS)])
    data["old_log_probs"] = before
    data["advantages"] = response_to_nested(signs[:, None] * padded, mask)
    weights = rollout_token_weights(padded, keys)
    data["rollout_is_weights"] = response_to_nested(weights, mask)
    tu.assign_non_tensor(
        data,
        calculate_entropy=False,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=ROWS,
        mini_batch_size=ROWS,
        epochs=1,
        seed=1,
        dataloader_kwargs={"shuffle": False},
        compute_loss=True,
        temperature=1.0,
    )
    with TemporaryDirectory() as folder:
        worker.save_checkpoint(str(Path(folder) / "actor"), None, 1)
        metrics = tu.get(worker.update_actor(data), "metrics")
        after = logprobs()
        worker.load_checkpoint(str(Path(folder) / "actor"))
        restored = logprobs()
    moved = [
        (new - old).mean().item() for new, old in zip(after.unbind(), before.unbind(), strict=True)
    ]
    return {
        "gap": gap,
        "moved": moved,
        "restored": (restored.values() - before.values()).abs().max().item(),
        "loss": float(np.sum(metrics["actor/pg_loss"])),
        "grad_norm": float(np.mean(metrics["grad_norm"])),
    }


def _settings(model: str) -> dict[str, Any]:
    return {
        "trainer": {"device": "cpu", "logger": ["console"]},
        "data": {"train_batch_size": ROWS // 2},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "model": {"path": model},
            "actor": {
                "ppo_mini_batch_size": ROWS // 2,
                "ppo_micro_batch_size_per_gpu": 4,
                "optim": {"lr": 1e-3},
            },
            "rollout": {"n": 2, "log_prob_micro_batch_size_per_gpu": 4},
        },
    }


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1])))
