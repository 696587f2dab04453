"""verl's V1 trainers, with rollouts made by agents that run elsewhere.

Each class is verl's own with one mixin in front. The mixin submits tasks instead of generating
texts, holds agents' calls back while weights change, and computes advantages per rollout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import NonTensorData, TensorDict
from torch.utils.data import Dataset as TorchDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.utils import Role, create_rl_sampler
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.utils.padding import response_to_nested

from agl_algo_verl.advantages import (
    add_advantages,
    add_call_advantages,
    rollout_token_weights,
)
from agl_algo_verl.bridge import Bridge
from agl_algo_verl.config import VERLConfig
from agl_algo_verl.rollout_groups import Prompt

__all__ = ["TRAINERS", "AgentColocateAsync", "AgentSeparateAsync", "AgentSync", "PromptDispatcher"]


class TaskIndices(TorchDataset[dict[str, Any]]):
    """Dataset of task indices for verl's data loader; :class:`GroupRunner` has the tasks.

    Args:
        data_sources: Data source of each task.
    """

    def __init__(self, data_sources: Sequence[str]) -> None:
        self._data_sources = data_sources

    def __len__(self) -> int:
        return len(self._data_sources)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # verl counts its prompts by this key.
        return {"raw_prompt": [], "index": index, "data_source": self._data_sources[index]}


class PromptDispatcher:
    """Replaces verl's agent loops: submits prompts to the algorithm and returns at once."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start a group of rollouts for each prompt."""
        step = int(_plain(prompts["global_steps"]))
        validate = "validate" in prompts and bool(_plain(prompts["validate"]))
        self._bridge.submit(
            [
                Prompt(str(uid), int(index), step, validate)
                for uid, index in zip(_items(prompts["uid"]), _items(prompts["index"]), strict=True)
            ]
        )


class AgentTrainer:
    """Mixin for training agents, in front of one of verl's trainers.

    Args:
        config: verl's configuration.
        options: Options of the algorithm.
        bridge: Interface to the algorithm.
        data_sources: Data sources of the tasks, by partition.
        workers: Worker classes that replace verl's own, by role.
    """

    config: Any
    replay_buffer: Any
    global_steps: int
    _calls_aborted = 0

    def __init__(
        self,
        config: Any,
        *,
        options: VERLConfig,
        bridge: Bridge,
        data_sources: Mapping[str, Sequence[str]],
        workers: Mapping[Role, type] | None = None,
    ) -> None:
        self.options = options
        self.bridge = bridge
        self._data_sources = data_sources
        self._workers = workers or {}
        super().__init__(config)  # pyright: ignore[reportCallIssue]

    # -- tasks -------------------------------------------------------------------------------------

    def _init_dataloader(self) -> None:
        config = self.config
        train, val = (TaskIndices(self._data_sources[part]) for part in ("train", "val"))
        self.train_dataset, self.val_dataset = train, val
        # verl fetches replacements for dropped groups one by one.
        with open_dict(config):
            config.data.gen_batch_size = 1
        self.train_dataloader = StatefulDataLoader(
            dataset=train,
            batch_size=1,
            num_workers=0,
            collate_fn=collate_fn,
            sampler=create_rl_sampler(config.data, train),
        )
        self.train_dataloader_it = None
        self.val_dataloader = StatefulDataLoader(
            dataset=val,
            batch_size=config.data.val_batch_size or max(len(val), 1),
            num_workers=0,
            collate_fn=collate_fn,
        )
        self.steps_per_epoch = len(train) // config.data.train_batch_size
        steps = config.trainer.total_training_steps
        self.total_training_steps = steps or self.steps_per_epoch * config.trainer.total_epochs
        updates = self.total_training_steps * self.parameter_sync_step  # pyright: ignore
        with open_dict(config):
            config.actor_rollout_ref.actor.optim.total_training_steps = updates
            config.critic.optim.total_training_steps = updates

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # pyright: ignore[reportAttributeAccessIssue]
        mapping: dict[Role, Any] = self.role_worker_mapping  # pyright: ignore
        for role in mapping:
            if role in self._workers:
                mapping[role] = ray.remote(self._workers[role])

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()  # pyright: ignore[reportAttributeAccessIssue]
        # verl polls every two seconds; the bridge wakes it when a group has ended.
        buffer._wait_for_next_poll = self._wait_for_group
        return buffer

    def _wait_for_group(self, partition_id: str, last_debug_time: float) -> float:
        self.bridge.wait(self.replay_buffer.poll_interval)
        return last_debug_time

    # -- agents at the servers ---------------------------------------------------------------------

    def server_addresses(self) -> list[str]:
        """Return ``host:port`` of the servers that agents call."""
        return self.llm_server_manager.get_addresses()  # pyright: ignore

    def on_init_end(self) -> None:
        """Let agents' calls through once the servers have the first weights."""
        super().on_init_end()  # pyright: ignore[reportAttributeAccessIssue]
        self.bridge.serve(self.server_addresses(), self.global_steps)

    def _hold_calls(self) -> None:
        self._calls_aborted += self.bridge.pause()

    # -- advantages -------------------------------------------------------------------------------

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)  # pyright: ignore
        metrics.update(_logprob_gap(batch, self.config))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        algorithm = self.config.algorithm
        names = ["uid", "response_mask", "rm_scores", "rollout_log_probs", "old_log_probs"]
        names += ["ref_log_prob", "values"]
        by_turn = self.options.credit.type != "group"
        if by_turn:
            names.append("call_advantages")
        stored = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=names
        )
        nested_mask = stored["response_mask"]
        data = DataProto(batch=stored.to_padded_tensor())
        data.batch["token_level_scores"] = data.batch["rm_scores"]
        data.non_tensor_batch["uid"] = np.array(data.batch.pop("uid").tolist(), dtype=object)
        written = ["advantages", "returns"]

        if algorithm.use_kl_in_reward:
            data, kl = apply_kl_penalty(
                data,
                kl_ctrl=self.kl_ctrl_in_reward,  # pyright: ignore[reportAttributeAccessIssue]
                kl_penalty=algorithm.kl_penalty,
            )
            metrics.update(kl)
            written.append("token_level_rewards")
        else:
            data.batch["token_level_rewards"] = data.batch["token_level_scores"]

        correction = algorithm.get("rollout_correction")
        if correction and not correction.bypass_mode and "rollout_log_probs" in data.batch:
            data, found = compute_rollout_correction_and_add_to_batch(data, correction)
            metrics.update(found)
            # It rejects tokens by removing them from the mask.
            written.append("response_mask")

        if by_turn:
            data = add_call_advantages(data)
        else:
            data = add_advantages(
                data,
                batch.keys,
                level=self.options.advantage_level,
                estimator=algorithm.adv_estimator,
                num_repeat=self.config.actor_rollout_ref.rollout.n,
                gamma=algorithm.gamma,
                lam=algorithm.lam,
                norm_by_std=algorithm.get("norm_adv_by_std_in_grpo", True),
                config=algorithm,
            )
        if self.options.loss_level == "rollout":
            weights = rollout_token_weights(data.batch["response_mask"], batch.keys)
            given = data.batch.get("rollout_is_weights", None)
            data.batch["rollout_is_weights"] = weights if given is None else weights * given
        if "rollout_is_weights" in data.batch:
            written.append("rollout_is_weights")

        nested = {name: response_to_nested(data.batch[name], nested_mask) for name in written}
        return tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(nested, batch_size=len(batch)),
        )

    # -- reports -----------------------------------------------------------------------------------

    def _validate(self) -> dict[str, float]:
        found = super()._validate()  # pyright: ignore[reportAttributeAccessIssue]
        found.update(self.bridge.take_metrics("val"))
        self.bridge.step_done(self.global_steps, _numbers(found))
        return found

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)  # pyright: ignore
        metrics.update(self.bridge.take_metrics("train"))
        metrics["agl/calls_aborted"] = float(self._calls_aborted)
        metrics["agl/rows_padding"] = float(sum(t.get("is_padding", False) for t in batch.tags))
        self._calls_aborted = 0
        self.bridge.step_done(self.global_steps, _numbers(metrics))

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()  # pyright: ignore[reportAttributeAccessIssue]
        folder = os.path.join(  # noqa: PTH118 -- as verl builds the name
            self.config.trainer.default_local_dir, f"global_step_{self.global_steps}"
        )
        self.bridge.saved(self.global_steps, folder)


class AgentSync(AgentTrainer, PPOTrainerSync):
    """Rollouts, then training, on the same devices; rows are sampled by the weights they train."""

    def on_sample_end(self) -> None:
        """Hold calls back before the servers sleep."""
        self._hold_calls()
        # This also stops calls that bypass the proxy.
        self.checkpoint_manager.abort_replicas()
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Let calls through to the new weights."""
        super().on_step_end()
        self.checkpoint_manager.resume_generation_replicas()
        self.bridge.resume(self.global_steps)


class AgentColocateAsync(AgentTrainer, PPOTrainerColocateAsync):
    """One step off-policy, on the same devices; the next batch starts before this one is used."""

    def on_sample_end(self) -> None:
        """Hold calls back before the servers sleep; rollouts continue afterwards."""
        self._hold_calls()
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Let calls through to the new weights."""
        super().on_step_end()
        self.bridge.resume(self.global_steps)


class AgentSeparateAsync(AgentTrainer, PPOTrainerSeparateAsync):
    """One step off-policy or more, on separate devices; agents continue during training."""

    def server_addresses(self) -> list[str]:
        """Return ``host:port`` of the standalone servers.

        The hybrid ones sleep while the trainer trains.
        """
        return self.standalone_server_manager.get_addresses()

    def on_step_end(self) -> None:
        """Hold calls back while the weights are sent."""
        self._hold_calls()
        super().on_step_end()
        self.bridge.resume(self.global_steps)


TRAINERS: Final[Mapping[str, type[Any]]] = {
    "sync": AgentSync,
    "colocate_async": AgentColocateAsync,
    "separate_async": AgentSeparateAsync,
}
"""Trainer classes by verl's ``trainer.v1.trainer_mode``."""


def _logprob_gap(batch: KVBatchMeta, config: Any) -> dict[str, float]:
    """Compare the trainer's log-probabilities with the server's, over all sampled tokens.

    Differences come from other kernels and precision in the servers, and from changes of the
    weights since the tokens were sampled.
    """
    correction = config.algorithm.get("rollout_correction")
    captured = config.actor_rollout_ref.rollout.calculate_log_probs
    if not captured or (correction and correction.bypass_mode):
        return {}
    names = ["old_log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    sampled = data["response_mask"].values() > 0
    gap = (data["old_log_probs"].values() - data["rollout_log_probs"].values()).abs()[sampled]
    if not gap.numel():
        return {}
    return {"agl/logprob_gap_max": gap.max().item(), "agl/logprob_gap_mean": gap.mean().item()}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    }


def _plain(value: Any) -> Any:
    """Return the value of one row, or that of a batch, which verl gives all rows alike."""
    if isinstance(value, NonTensorData):
        return value.data
    return value.flatten()[0].item() if isinstance(value, torch.Tensor) else value


def _items(column: Any) -> list[Any]:
    """Return the values of a column of a batch: a tensor, or a stack of anything else."""
    return [_plain(value) for value in column]
