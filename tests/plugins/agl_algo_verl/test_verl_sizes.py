"""What a configuration comes to on its GPUs, and what ``--check`` refuses before a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agl_algo_verl import VERL, VERLConfig
from agl_core.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and what it imports

ACTOR = {"ppo_mini_batch_size": 8, "use_dynamic_bsz": True}


def gpus(folder: Path, per_node: int = 8, **parts: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of a training on GPUs."""
    return {
        "trainer": {"n_gpus_per_node": per_node, "logger": ["console"], **parts.get("trainer", {})},
        "data": {"train_batch_size": 16, **parts.get("data", {})},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "model": {"path": str(folder), **parts.get("model", {})},
            "actor": {**ACTOR, **parts.get("actor", {})},
            "rollout": {"n": 4, "tensor_model_parallel_size": 1, **parts.get("rollout", {})},
        },
    }


def refusal(folder: Path, **parts: Any) -> str:
    from agl_algo_verl.dry_run import describe

    with pytest.raises(ConfigError) as error:
        describe(VERLConfig(config=gpus(folder, **parts)))
    assert "\n" not in str(error.value)
    return str(error.value)


async def test_check_says_what_a_run_will_use(tiny_model: Path):
    config = gpus(tiny_model, rollout={"tensor_model_parallel_size": 2})
    rows = await VERL({**config, "trainer": {**config["trainer"], "device": "cpu"}}).check()
    assert rows["training"] == "8 GPUs, 8 data parallel, state shared by 8"
    assert rows["servers"] == "4 of 2 GPUs each, on the same GPUs"
    assert rows["step"] == "64 rollouts, 2 updates, rows of 1024 tokens at most"
    assert rows["memory"].startswith("per GPU 0.0 GiB trained state")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"rollout": {"tensor_model_parallel_size": 3}}, "a server (3) does not divide the GPUs"),
        ({"actor": {"ppo_mini_batch_size": 3}}, "parallel size (8) does not divide ppo_mini_batch"),
        (
            {"actor": {"ulysses_sequence_parallel_size": 3}},
            "its parallel size (3) does not divide the GPUs that train (8)",
        ),
        (
            {
                "actor": {"ulysses_sequence_parallel_size": 2},
                "model": {"use_remove_padding": False},
            },
            "you must enable `use_remove_padding`",
        ),
        ({"actor": {"ppo_max_token_len_per_gpu": 1000}}, "hold no row of 1024 tokens"),
        ({"rollout": {"max_model_len": 1000}}, "max_model_len: 1000 is less than"),
        ({"rollout": {"log_prob_use_dynamic_bsz": False}}, "must equal actor.use_dynamic_bsz"),
        ({"rollout": {"mode": "sync"}}, "Rollout mode 'sync' has been removed"),
        ({"rollout": {"pipeline_model_parallel_size": 2}}, "pipeline_model_parallel_size > 1"),
        (
            {"rollout": {"max_model_len": 10**7}},
            "10000000 tokens are more than the model's",
        ),
        ({"rollout": {"tensor_model_parallel_size": 8}}, "does not divide the model's heads"),
        (
            {"trainer": {"v1": {"trainer_mode": "separate_async"}}},
            "rollout.nnodes: separate_async needs GPUs for the servers",
        ),
    ],
)
def test_what_verls_workers_would_refuse_later(
    tiny_model: Path, parts: dict[str, Any], message: str
):
    assert message in refusal(tiny_model, **parts)


def test_memory_of_a_model_of_four_billion_parameters(tiny_model: Path):
    """Compare with the arithmetic of Qwen3 4B: 36 layers, 8 heads of keys of 128 dimensions."""
    from agl_algo_verl.settings import compose
    from agl_algo_verl.sizes import check_memory, resolve_sizes

    model = {
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 2560,
    }
    config = compose(VERLConfig(config=gpus(tiny_model, per_node=4)))
    sizes = resolve_sizes(config)
    memory = check_memory(config, sizes, model, 4_000_000_000)
    assert memory.trained == 4 * 4_000_000_000  # 16 bytes, on 4 GPUs
    assert memory.served == 8_000_000_000
    assert memory.row == 1024 * 147_456  # 144 KiB per token
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization: 5\.0 GiB of each GPU do not"):
        check_memory(config, sizes, model, 4_000_000_000, 10 * 2**30)
    config.actor_rollout_ref.rollout.gpu_memory_utilization = 0.9
    with pytest.raises(ConfigError, match="fsdp_config: weights, gradients and optimizer need"):
        check_memory(config, sizes, model, 12_000_000_000, 44 * 2**30)


def test_a_model_that_is_not_here_is_not_measured():
    from agl_algo_verl.dry_run import describe

    rows = describe(VERLConfig(config=gpus(Path("Qwen/Qwen3-1.7B"))))
    assert rows["model"] == "Qwen/Qwen3-1.7B is not a folder here: its size was not checked"


def test_what_verl_refuses_of_the_model(tiny_model: Path, tmp_path: Path):
    for file in tiny_model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["A", "B"]}))
    assert "Expect only one architecture" in refusal(tmp_path)
