"""verl's configuration: its Hydra defaults, with a user's dict merged over them.

As on verl's command line, an unknown key is an error, and a ``+`` or ``++`` before a key adds it:
``{"ray_kwargs": {"ray_init": {"+address": "auto"}}}``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from agl_algo_verl.config import VERLConfig
from agl_algo_verl.overrides import filled_tables, first_line, merge
from agl_algo_verl.sizes import resolve_sizes
from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["compose", "is_cpu", "refuse_as", "sampling_of", "trainer_table"]

_DEFAULTS: Final = {
    "actor_rollout_ref": {"rollout": {"name": "vllm"}},
    # Otherwise a group without rows shrinks the batch silently; with it verl takes another task.
    "trainer": {"v1": {"sampler": {"sync_refill_failed_groups": True}}},
}
_MODES: Final = ("sync", "colocate_async", "separate_async")


def trainer_table(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section ``trainer`` of a configuration.

    Raises:
        ConfigError: It is not a table.
    """
    trainer = config.get("trainer") or {}
    if not isinstance(trainer, Mapping):
        raise ConfigError(f"must be a table, not {trainer!r}", path="config.trainer")
    return trainer


def is_cpu(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration selects the CPU platform.

    Raises:
        ConfigError: Its section ``trainer`` is not a table.
    """
    return trainer_table(config).get("device") == "cpu"


def sampling_of(section: Any) -> dict[str, float]:
    """Return the sampling parameters of a section, with the names of OpenAI's protocol."""
    parameters = {"temperature": float(section.temperature)}
    if section.top_p < 1:
        parameters["top_p"] = float(section.top_p)
    return parameters


def compose(options: VERLConfig, run_name: str = "") -> DictConfig:
    """Return verl's configuration, resolved and checked by verl.

    Args:
        options: Options of the algorithm; ``options.config`` overrides verl's defaults.
        run_name: Name of the run, which is the default name of the experiment.

    Raises:
        ConfigError: A key is unknown or a value is invalid.
    """
    from hydra import compose as compose_defaults, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose_defaults(options.config_name)
    except HydraException as error:
        raise ConfigError(first_line(error), path="config_name") from error
    filled = filled_tables(config)  # before a merge fills a table that takes any key
    merge(config, _DEFAULTS, filled)
    if run_name:
        merge(config, {"trainer": {"experiment_name": run_name}}, filled)
    if is_cpu(options.config):
        from agl_verl_cpu.settings import FORCED, SEPARATE, cpu_defaults

        merge(config, cpu_defaults(), filled)
        merge(config, options.config, filled, label="config")
        separate = config.trainer.v1.trainer_mode == "separate_async"
        for path, value in {**FORCED, **(SEPARATE if separate else {})}.items():
            OmegaConf.update(config, path, value)
    else:
        merge(config, options.config, filled, label="config")
    config.transfer_queue.enable = True
    _check(config, options)
    return config


def _check(config: DictConfig, options: VERLConfig) -> None:
    """Let verl check the configuration, and refuse settings that would fail silently."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    mode = config.trainer.v1.trainer_mode
    if mode not in _MODES:
        raise ConfigError(
            f"{mode!r} is not one of {', '.join(_MODES)}", path="config.trainer.v1.trainer_mode"
        )
    if not config.trainer.use_v1:
        raise ConfigError("VERL needs the V1 trainer", path="config.trainer.use_v1")
    if config.trainer.v1.separate_async.hybrid_rollout.enable_switch:
        raise ConfigError(
            "agents call the standalone rollout servers only; set it to false",
            path="config.trainer.v1.separate_async.hybrid_rollout.enable_switch",
        )
    model = config.actor_rollout_ref.model
    if (model.lora_rank > 0 or model.lora.get("rank", 0) > 0) and not model.lora.get("merge"):
        raise ConfigError(
            "agents call the servers over HTTP, where verl does not apply its adapter; set it to "
            "true, so that the servers get merged weights",
            path="config.actor_rollout_ref.model.lora.merge",
        )
    if options.loss_level == "rollout":
        if config.actor_rollout_ref.actor.loss_agg_mode != "token-mean":
            raise ConfigError(
                "loss_level='rollout' weights tokens, which needs token-mean",
                path="config.actor_rollout_ref.actor.loss_agg_mode",
            )
        if config.algorithm.rollout_correction.bypass_mode:
            raise ConfigError(
                "bypass_mode has weights of its own: set it to false, or leave loss_level at token",
                path="config.algorithm.rollout_correction.bypass_mode",
            )
    if options.credit.type != "group":
        _check_credit(config, options)
    with refuse_as("config"):
        validate_config(config, need_reference_policy(config), need_critic(config))
        OmegaConf.resolve(config)
    with refuse_as("config.actor_rollout_ref.rollout"):
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    resolve_sizes(config)


@contextmanager
def refuse_as(path: str) -> Generator[None]:
    """Make what verl's own checks raise inside the context errors of a part of the configuration.

    Raises:
        ConfigError: verl refused something; the message is its first line.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    kinds = (AssertionError, ValueError, TypeError, NotImplementedError)
    try:
        yield
    except (*kinds, OmegaConfBaseException, HydraException) as error:
        raise ConfigError(first_line(_cause(error)), path=path) from error


def _cause(error: BaseException) -> BaseException:
    """Return what a check raised; Hydra's own error only says which class it was making."""
    from hydra.errors import HydraException

    if isinstance(error, HydraException) and error.__cause__ is not None:
        return error.__cause__
    return error


def _check_credit(config: DictConfig, options: VERLConfig) -> None:
    """Refuse settings that credit by turn would ignore, or that undo it.

    Raises:
        ConfigError: There is one.
    """
    credit, algorithm = options.credit.type, config.algorithm
    if algorithm.adv_estimator != "grpo":
        raise ConfigError(
            f"credit={credit!r} computes the advantages in place of verl; set it to grpo",
            path="config.algorithm.adv_estimator",
        )
    if algorithm.use_kl_in_reward:
        raise ConfigError(
            f"credit={credit!r} reads the rewards of rollouts, not of tokens; put the KL into the "
            "loss (actor.use_kl_loss)",
            path="config.algorithm.use_kl_in_reward",
        )
    if options.advantage_level == "row":
        raise ConfigError(
            f"credit={credit!r} compares rollouts; set it to rollout", path="advantage_level"
        )
    if credit != "forked":
        return
    reason = "credit='forked' weighs tokens, and a fork has only a part of a rollout's"
    if options.loss_level == "rollout":
        raise ConfigError(f"{reason}; leave it at token", path="loss_level")
    if config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-mean":
        raise ConfigError(
            f"{reason}; use token-mean", path="config.actor_rollout_ref.actor.loss_agg_mode"
        )
