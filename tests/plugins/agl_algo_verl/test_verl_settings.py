"""verl's configuration, made from a dict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agl_algo_verl import VERL, VERLConfig
from agl_core.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and what it imports


def small(folder: Path, **sections: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "trainer": {"device": "cpu", "logger": ["console"]},
        "data": {"train_batch_size": 4},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "model": {"path": str(folder)},
            "actor": {"ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 4},
            "rollout": {"n": 4, "log_prob_micro_batch_size_per_gpu": 4},
        },
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    return config


@pytest.fixture
def compose(tiny_model: Path) -> Any:
    from agl_algo_verl.settings import compose

    def make(run_name: str = "", options: Any = None, **sections: Any) -> Any:
        chosen = VERLConfig(config=small(tiny_model, **sections), **(options or {}))
        return compose(chosen, run_name)

    return make


def message(error: pytest.ExceptionInfo[ConfigError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


class TestCompose:
    def test_what_is_given_goes_over_verls_defaults(self, compose: Any):
        config = compose(data={"max_prompt_length": 77, "train_batch_size": 4})
        assert config.data.max_prompt_length == 77
        assert config.data.max_response_length == 512
        assert config.actor_rollout_ref.rollout.n == 4
        assert config.actor_rollout_ref.rollout.prompt_length == 77  # verl's own reference to it

    def test_a_run_names_the_experiment_unless_it_has_a_name(self, compose: Any):
        assert compose("rooms").trainer.experiment_name == "rooms"
        named = {"device": "cpu", "logger": ["console"], "experiment_name": "mine"}
        assert compose("rooms", trainer=named).trainer.experiment_name == "mine"

    def test_a_plus_adds_a_key(self, compose: Any):
        config = compose(ray_kwargs={"ray_init": {"+address": "auto"}})
        assert config.ray_kwargs.ray_init.address == "auto"

    def test_a_mapping_that_is_empty_takes_any_key(self, compose: Any):
        config = compose(data={"apply_chat_template_kwargs": {"enable_thinking": False}})
        assert config.data.apply_chat_template_kwargs.enable_thinking is False

    def test_the_cpu_platform_has_no_alternatives(self, compose: Any):
        config = compose()
        assert config.actor_rollout_ref.rollout.name == "agl_transformers"
        assert config.actor_rollout_ref.actor.strategy == "fsdp2"
        assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"

    def test_dropped_groups_are_replaced_by_default(self, compose: Any):
        assert compose().trainer.v1.sampler.sync_refill_failed_groups is True


def test_the_readmes_example_for_a_gpu_is_a_configuration(tiny_model: Path):
    """Check the example without a GPU: every key is known, and verl's checks pass."""
    from agl_algo_verl.settings import compose

    readme = Path(__file__).parents[3] / "plugins" / "agl_algo_verl" / "README.md"
    code = re.search(r"^CONFIG = .*?^}$", readme.read_text(), re.MULTILINE | re.DOTALL)
    assert code is not None
    found: dict[str, Any] = {}
    exec(code[0], found)
    found["CONFIG"]["actor_rollout_ref"]["model"]["path"] = str(tiny_model)
    config = compose(VERLConfig(config=found["CONFIG"]))
    assert config.trainer.device == "cuda"
    assert config.actor_rollout_ref.rollout.name == "vllm"
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser == "hermes"


class TestMistakes:
    def test_the_error_for_an_unknown_key_has_its_path(self, compose: Any):
        with pytest.raises(ConfigError) as error:
            compose(data={"max_promt_length": 3})
        assert message(error).startswith("config.data.max_promt_length: Key 'max_promt_length'")

    def test_an_unknown_section_too(self, compose: Any):
        with pytest.raises(ConfigError, match=r"^config\.trainr: Key 'trainr' is not in struct$"):
            compose(trainr={"total_epochs": 1})

    def test_an_unknown_configuration(self, tiny_model: Path):
        from agl_algo_verl.settings import compose

        with pytest.raises(ConfigError) as error:
            compose(VERLConfig(config=small(tiny_model), config_name="ppo_trainr"))
        assert message(error).startswith("config_name: ")

    def test_an_unknown_mode(self, compose: Any):
        with pytest.raises(ConfigError, match=r"^config\.trainer\.v1\.trainer_mode: 'synk' is"):
            compose(trainer={"device": "cpu", "v1": {"trainer_mode": "synk"}})

    def test_what_verl_itself_finds_wrong(self, compose: Any, tiny_model: Path):
        broken = small(tiny_model)["actor_rollout_ref"]
        broken["rollout"] = {"n": 4}
        with pytest.raises(ConfigError) as error:
            compose(actor_rollout_ref=broken)
        assert "log_prob_micro_batch_size_per_gpu" in message(error)

    def test_lending_trainers_to_rollout(self, compose: Any):
        lend = {"separate_async": {"hybrid_rollout": {"enable_switch": True}}}
        with pytest.raises(ConfigError, match="enable_switch: agents call the standalone"):
            compose(trainer={"device": "cpu", "v1": lend})

    def test_an_adapter_that_agents_would_not_see(self, compose: Any, tiny_model: Path):
        adapter = small(tiny_model)["actor_rollout_ref"]
        adapter["model"]["lora_rank"] = 8
        with pytest.raises(ConfigError, match=r"model\.lora\.merge: agents call the servers over"):
            compose(actor_rollout_ref=adapter)
        adapter["model"]["lora"] = {"merge": True}
        assert compose(actor_rollout_ref=adapter).actor_rollout_ref.model.lora_rank == 8

    def test_a_loss_per_rollout_and_another_aggregation(self, compose: Any, tiny_model: Path):
        other = small(tiny_model)["actor_rollout_ref"]
        other["actor"]["loss_agg_mode"] = "seq-mean-token-sum"
        with pytest.raises(ConfigError, match="needs token-mean"):
            compose(actor_rollout_ref=other, options={"loss_level": "rollout"})
        bypass = {"rollout_correction": {"bypass_mode": True}}
        with pytest.raises(
            ConfigError, match=r"bypass_mode has weights of its own: set it to false"
        ):
            compose(algorithm=bypass, options={"loss_level": "rollout"})

    @pytest.mark.parametrize(
        ("options", "sections", "error"),
        [
            (
                {},
                {"algorithm": {"adv_estimator": "rloo"}},
                r"^config\.algorithm\.adv_estimator: cre",
            ),
            ({}, {"algorithm": {"use_kl_in_reward": True}}, r"use_kl_in_reward: .*use_kl_loss"),
            (
                {"advantage_level": "row"},
                {},
                r"^advantage_level: credit='forked' compares rollou.*; set it",
            ),
            ({"loss_level": "rollout"}, {}, r"^loss_level: credit='forked' weighs tokens"),
        ],
    )
    def test_what_credit_by_turn_would_ignore(
        self, compose: Any, options: Any, sections: Any, error: str
    ):
        compose(options={"credit": "forked"})
        with pytest.raises(ConfigError, match=error):
            compose(options={"credit": "forked", **options}, **sections)

    def test_forks_and_a_mean_over_the_tokens_of_each_row(self, compose: Any, tiny_model: Path):
        mean = small(tiny_model)["actor_rollout_ref"]
        mean["actor"]["loss_agg_mode"] = "seq-mean-token-mean"
        compose(actor_rollout_ref=mean, options={"credit": "rtmc"})
        with pytest.raises(ConfigError, match=r"loss_agg_mode: credit='forked' weighs tokens"):
            compose(actor_rollout_ref=mean, options={"credit": "forked"})

    def test_an_option_out_of_range(self):
        with pytest.raises(ConfigError, match=r"^VERL\.max_retries: should be greater"):
            VERL({}, max_retries=-1)
