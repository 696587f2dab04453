"""What a configuration of verl comes to on its GPUs: parallel sizes, batches, memory.

verl finds most of these mistakes in its workers, after it has started Ray and loaded the model.
Here they are found before anything starts. The rules are those of verl 0.9
(``workers/engine_workers.py``, ``workers/rollout/replica.py``, ``trainer/ppo/v1``) and vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["Memory", "Sizes", "check_memory", "check_model", "resolve_sizes"]

_ACTOR: Final = "config.actor_rollout_ref.actor"
_ROLLOUT: Final = "config.actor_rollout_ref.rollout"
_TRAINED_BYTES: Final = 16
"""Bytes per trained parameter: float32 weight and gradient, two float32 moments of Adam."""
_FROZEN_BYTES: Final = 4
"""Bytes per parameter below LoRA adapters: verl's FSDP holds float32 weights."""
_SERVED_BYTES: Final = 2
"""Bytes per parameter and per value of the key-value cache in the server: bfloat16."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parallel sizes and batches.

    Attributes:
        gpus: GPUs that train.
        data_parallel: Copies of the model that train on different rows.
        shards: GPUs that share one copy of the trained state.
        replicas: Rollout servers.
        replica_gpus: GPUs of a rollout server.
        rollouts: Rollouts of a step.
        updates: Updates of the weights in a step.
        row_tokens: Longest row, prompt and response, in tokens.
        shared: Whether servers and training use the same GPUs.
    """

    gpus: int
    data_parallel: int
    shards: int
    replicas: int
    replica_gpus: int
    rollouts: int
    updates: int
    row_tokens: int
    shared: bool

    def rows(self) -> dict[str, str]:
        """Return them for display."""
        where = "the same GPUs" if self.shared else "GPUs of their own"
        return {
            "training": f"{self.gpus} GPUs, {self.data_parallel} data parallel, "
            f"state shared by {self.shards}",
            "servers": f"{self.replicas} of {self.replica_gpus} GPUs each, on {where}",
            "step": f"{self.rollouts} rollouts, {self.updates} updates, "
            f"rows of {self.row_tokens} tokens at most",
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one GPU that are known before the first step; activations come on top.

    Attributes:
        trained: Weights, gradients and optimizer of the trainer; what is offloaded is left out.
        served: Weights of the rollout server.
        row: Key-value cache of one row of full length in the server.
    """

    trained: int
    served: int
    row: int

    def rows(self) -> dict[str, str]:
        """Return them for display."""
        gib = {name: f"{getattr(self, name) / 2**30:.1f} GiB" for name in ("trained", "served")}
        return {
            "memory": f"per GPU {gib['trained']} trained state, {gib['served']} served weights, "
            f"{self.row / 2**20:.0f} MiB of cache per row"
        }


# -- parallel sizes and batches --------------------------------------------------------------------


def resolve_sizes(config: DictConfig) -> Sizes:
    """Return the sizes that a composed configuration comes to.

    Raises:
        ConfigError: verl's workers would refuse them.
    """
    trainer, actor = config.trainer, config.actor_rollout_ref.actor
    rollout = config.actor_rollout_ref.rollout
    gpus = trainer.n_gpus_per_node * trainer.nnodes
    if gpus < 1:
        raise ConfigError("there must be a GPU", path="config.trainer.n_gpus_per_node")
    split = _model_parallel(config)
    _divides(split, gpus, "its parallel size", "the GPUs that train", _ACTOR)
    data_parallel = gpus // split
    rows = actor.ppo_mini_batch_size * rollout.n
    _divides(
        data_parallel,
        rows,
        "the data parallel size",
        "ppo_mini_batch_size times rollout.n",
        f"{_ACTOR}.ppo_mini_batch_size",
    )
    _check_micro_batches(config, split)
    shared = trainer.v1.trainer_mode != "separate_async"
    if not shared:
        _check_separate(config)
    server_gpus = gpus if shared else rollout.n_gpus_per_node * rollout.nnodes
    replica = rollout.tensor_model_parallel_size * rollout.data_parallel_size
    replica *= rollout.pipeline_model_parallel_size
    path = f"{_ROLLOUT}.tensor_model_parallel_size"
    _divides(replica, server_gpus, "the GPUs of a server", "the GPUs for servers", path)
    node = trainer.n_gpus_per_node if shared else rollout.n_gpus_per_node
    if replica > node:
        _divides(node, replica, "the GPUs of a node", "the GPUs of a server", path)
    batch = config.data.train_batch_size
    fsdp_size = (actor.get("fsdp_config") or {}).get("fsdp_size", -1)
    return Sizes(
        gpus=gpus,
        data_parallel=data_parallel,
        shards=gpus if fsdp_size < 1 else min(fsdp_size, gpus),
        replicas=server_gpus // replica,
        replica_gpus=replica,
        rollouts=batch * rollout.n,
        updates=-(-batch // actor.ppo_mini_batch_size) * actor.ppo_epochs,
        row_tokens=config.data.max_prompt_length + config.data.max_response_length,
        shared=shared,
    )


def _model_parallel(config: DictConfig) -> int:
    """Return the number of GPUs that train on the same rows."""
    actor = config.actor_rollout_ref.actor
    if actor.strategy == "megatron":
        megatron = actor.megatron
        size = megatron.tensor_model_parallel_size * megatron.pipeline_model_parallel_size
        return size * megatron.context_parallel_size
    return actor.get("ulysses_sequence_parallel_size", 1)


def _check_micro_batches(config: DictConfig, split: int) -> None:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if actor.use_dynamic_bsz != rollout.log_prob_use_dynamic_bsz:
        raise ConfigError(
            f"must equal actor.use_dynamic_bsz ({actor.use_dynamic_bsz})",
            path=f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    limits = {
        f"{_ACTOR}.ppo_max_token_len_per_gpu": actor.ppo_max_token_len_per_gpu,
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": rollout.log_prob_max_token_len_per_gpu,
    }
    for path, limit in limits.items():
        if actor.use_dynamic_bsz and limit * split < longest:
            raise ConfigError(
                f"{limit} tokens on each of {split} GPUs hold no row of {longest} tokens "
                "(data.max_prompt_length + max_response_length)",
                path=path,
            )
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        raise ConfigError(
            f"{rollout.max_model_len} is less than data.max_prompt_length + max_response_length "
            f"({longest})",
            path=f"{_ROLLOUT}.max_model_len",
        )


def _check_separate(config: DictConfig) -> None:
    """Check what the mode ``separate_async`` needs."""
    rollout, steps = config.actor_rollout_ref.rollout, config.trainer.v1.separate_async
    if rollout.nnodes < 1 or rollout.n_gpus_per_node < 1:
        raise ConfigError("separate_async needs GPUs for the servers", path=f"{_ROLLOUT}.nnodes")
    trained = steps.parameter_sync_step * config.actor_rollout_ref.actor.ppo_mini_batch_size
    if config.data.train_batch_size != trained:
        raise ConfigError(
            "separate_async needs parameter_sync_step times actor.ppo_mini_batch_size "
            f"({trained}), not {config.data.train_batch_size}",
            path="config.data.train_batch_size",
        )


def _divides(part: int, whole: int, part_name: str, whole_name: str, path: str) -> None:
    if part < 1 or whole % part:
        raise ConfigError(f"{part_name} ({part}) does not divide {whole_name} ({whole})", path=path)


# -- the model -------------------------------------------------------------------------------------


def check_model(config: DictConfig, model: Mapping[str, Any]) -> None:
    """Check the sizes against the model's ``config.json``.

    Raises:
        ConfigError: verl or vLLM would refuse to split or serve the model.
    """
    text: Mapping[str, Any] = model.get("text_config") or model
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    splits = {
        f"{_ROLLOUT}.tensor_model_parallel_size": rollout.tensor_model_parallel_size,
        f"{_ACTOR}.ulysses_sequence_parallel_size": actor.get("ulysses_sequence_parallel_size", 1),
    }
    heads = text.get("num_attention_heads")
    grouped = text.get("num_key_value_heads") or heads
    for path, size in splits.items():
        if heads is not None:
            _divides(size, heads, "it", "the model's heads of attention", path)
        # Several GPUs may hold copies of one head of keys and values.
        if grouped is not None and grouped % size and size % grouped:
            raise ConfigError(f"{size} GPUs cannot share {grouped} heads of keys", path=path)
    positions = text.get("max_position_embeddings")
    wanted = rollout.max_model_len  # None is the number of positions
    if None not in (positions, wanted) and wanted > positions:
        raise ConfigError(
            f"{wanted} tokens are more than the model's {positions} positions",
            path=f"{_ROLLOUT}.max_model_len",
        )


def check_memory(
    config: DictConfig,
    sizes: Sizes,
    model: Mapping[str, Any],
    parameters: int,
    gpu_bytes: int | None = None,
) -> Memory:
    """Return the bytes that weights, optimizer and cache need on each GPU.

    Args:
        config: verl's configuration.
        sizes: What it comes to.
        model: The model's ``config.json``.
        parameters: Number of the model's parameters.
        gpu_bytes: Memory of a GPU; None if no GPU can be asked.

    Raises:
        ConfigError: They do not fit into ``gpu_bytes``.
    """
    text: Mapping[str, Any] = model.get("text_config") or model
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    lora = config.actor_rollout_ref.model
    frozen = lora.lora_rank > 0 or lora.lora.get("rank", 0) > 0
    offload = actor.get("fsdp_config") or {}
    per_parameter = _FROZEN_BYTES if frozen else _TRAINED_BYTES
    if offload.get("param_offload"):
        per_parameter -= 4
    if offload.get("optimizer_offload") and not frozen:
        per_parameter -= 8
    heads = text.get("num_attention_heads") or 1
    head = text.get("head_dim") or text.get("hidden_size", 0) // heads
    cached = 2 * text.get("num_hidden_layers", 0) * (text.get("num_key_value_heads") or heads)
    row = cached * head * _SERVED_BYTES * sizes.row_tokens // rollout.tensor_model_parallel_size
    served = parameters * _SERVED_BYTES // rollout.tensor_model_parallel_size
    memory = Memory(parameters * per_parameter // sizes.shards, served, row)
    if gpu_bytes is None:
        return memory
    room = int(gpu_bytes * rollout.gpu_memory_utilization)
    if memory.served + memory.row > room:
        raise ConfigError(
            f"{room / 2**30:.1f} GiB of each GPU do not hold the weights "
            f"({memory.served / 2**30:.1f} GiB) and the cache of one row "
            f"({memory.row / 2**30:.1f} GiB)",
            path=f"{_ROLLOUT}.gpu_memory_utilization",
        )
    if memory.trained > gpu_bytes:
        raise ConfigError(
            f"weights, gradients and optimizer need {memory.trained / 2**30:.1f} GiB of each "
            f"GPU's {gpu_bytes / 2**30:.1f}: use more GPUs, or offload",
            path=f"{_ACTOR}.fsdp_config",
        )
    return memory
