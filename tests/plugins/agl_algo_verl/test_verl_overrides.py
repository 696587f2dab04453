"""A user's dict over a configuration: what is unknown, what is added, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from agl_algo_verl.overrides import filled_tables, first_line, merge
from agl_algo_verl.settings import is_cpu
from agl_core.errors import ConfigError
from agl_verl_cpu.settings import cpu_defaults

VERL: dict[str, Any] = {
    "trainer": {"total_epochs": 30, "device": "cuda"},
    "actor_rollout_ref": {"model": {"path": "", "override_config": {}}},
    "rollout": {"model": "${actor_rollout_ref.model}", "seed": "${seed}", "node": "???"},
}


@pytest.fixture
def config() -> DictConfig:
    made = OmegaConf.create(VERL)
    OmegaConf.set_struct(made, True)
    return made


def over(config: DictConfig, *values: dict[str, Any]) -> dict[str, Any]:
    filled = filled_tables(config)
    for one in values:
        merge(config, one, filled, label="config")
    found = OmegaConf.to_container(config)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def test_the_tables_with_keys(config: DictConfig):
    """A table that refers to another one has that one's keys."""
    tables = {"", "trainer", "actor_rollout_ref", "actor_rollout_ref.model"}
    assert filled_tables(config) == tables | {"rollout", "rollout.model"}


def test_a_table_that_verl_leaves_empty_takes_any_key_after_defaults_too(config: DictConfig):
    """A CPU's defaults fill ``override_config``, where a GPU's run needs no ``+``."""
    cpu = {"actor_rollout_ref": {"model": cpu_defaults()["critic"]["model"]}}
    del cpu["actor_rollout_ref"]["model"]["use_remove_padding"]
    del cpu["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"]
    user = {"actor_rollout_ref": {"model": {"override_config": {"rope_theta": 1}}}}
    found = over(config, cpu, user)["actor_rollout_ref"]["model"]["override_config"]
    assert found == {"attn_implementation": "sdpa", "rope_theta": 1}


def test_a_table_that_was_added_takes_any_key(config: DictConfig):
    found = over(config, {"trainer": {"+v2": {"a": 1}}}, {"trainer": {"v2": {"b": 2}}})
    assert found["trainer"]["v2"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("mark", ["", "+", "++"])
def test_marks_of_hydra_are_no_part_of_a_key(config: DictConfig, mark: str):
    found = over(config, {"trainer": {f"{mark}total_epochs": 2}})
    assert found["trainer"] == {"total_epochs": 2, "device": "cuda"}


@pytest.mark.parametrize("mark", ["+", "++"])
def test_marks_add_keys_at_any_depth(config: DictConfig, mark: str):
    found = over(config, {"trainer": {f"{mark}v2": {f"{mark}a": 1}}})
    assert found["trainer"]["v2"] == {"a": 1}


def test_an_unknown_key(config: DictConfig):
    with pytest.raises(
        ConfigError, match=r"^config\.trainer\.epochs: Key 'epochs' is not in struct"
    ):
        over(config, {"trainer": {"epochs": 2}})


def test_a_section_that_is_no_table(config: DictConfig):
    with pytest.raises(ConfigError, match=r"^config\.actor_rollout_ref: must be a table, not 'x'"):
        over(config, {"actor_rollout_ref": "x"})
    with pytest.raises(ConfigError, match=r"^config\.trainer: must be a table, not 'x'$"):
        is_cpu({"trainer": "x"})
    assert not is_cpu({"trainer": None})


def test_a_table_may_be_switched_off_or_refer_to_another(config: DictConfig):
    found = over(config, {"trainer": None, "actor_rollout_ref": {"model": "${trainer}"}})
    assert found["trainer"] is None
    assert found["actor_rollout_ref"]["model"] == "${trainer}"


def test_the_first_line_of_an_error():
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError"
