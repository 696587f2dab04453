"""Advantages per rollout instead of per row, and loss weights that make rollouts count the same.

A rollout can have several rows: one per model call, or a new one wherever its history was cut. If
rows are compared with each other, a rollout of many calls dominates its group's mean and the loss.
These options prevent that:

- ``advantage_level="rollout"``: one score per rollout enters its group's mean and deviation, and
  the advantage goes to all of its rows.
- ``loss_level="rollout"``: the loss is the mean over rollouts of the mean over each one's tokens.

With credit by turn, rows come with the advantages of their calls (:mod:`agl_algo_verl.credit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.ray_trainer import compute_advantage

__all__ = ["add_advantages", "add_call_advantages", "rollout_of", "rollout_token_weights"]


def rollout_of(key: str) -> str:
    """Return the part of a row's key that all rows of its rollout share."""
    return key.rsplit("_", 1)[0]


def add_advantages(
    data: DataProto,
    keys: Sequence[str],
    *,
    level: Literal["rollout", "row"],
    estimator: Any,
    num_repeat: int,
    gamma: float,
    lam: float,
    norm_by_std: bool,
    config: Any,
) -> DataProto:
    """Compute advantages and returns with verl's estimator.

    Args:
        data: Batch of B rows, padded to T response tokens: ``token_level_rewards``,
            ``response_mask`` (B, T), and ``uid`` (B,), the group, among the non-tensors; for GAE
            also ``values`` (B, T).
        keys: Key of each row.
        level: Unit of a sample. GAE computes advantages per token and always works on rows.
        estimator: Name of the estimator.
        num_repeat: Number of rollouts in a group.
        gamma: Discount factor.
        lam: GAE's lambda.
        norm_by_std: Whether GRPO divides by the group's standard deviation.
        config: verl's ``algorithm`` section.

    Returns:
        ``data`` with ``advantages`` and ``returns`` (B, T), 0 outside the response mask. A group
        of which one sample is left has nothing to compare with; both are 0 for it.
    """
    arguments: dict[str, Any] = {
        "adv_estimator": estimator,
        "gamma": gamma,
        "lam": lam,
        "num_repeat": num_repeat,
        "norm_adv_by_std_in_grpo": norm_by_std,
        "config": config,
    }
    if estimator == AdvantageEstimator.GAE:
        return compute_advantage(data, **arguments)
    if level == "row":
        data = compute_advantage(data, **arguments)
        samples = list(range(len(keys)))
    else:
        samples, place = _last_rows(keys)
        final = compute_advantage(data.select_idxs(samples), **arguments)
        mask = final.batch["response_mask"]
        # These estimators give all sampled tokens of a row the same advantage.
        first = mask.argmax(dim=1, keepdim=True)
        scores = final.batch["advantages"].gather(1, first)[place]
        spread = scores * data.batch["response_mask"]
        data.batch["advantages"], data.batch["returns"] = spread, spread.clone()
    if num_repeat > 1:
        _zero_single_sample_groups(data, samples)
    return data


def add_call_advantages(data: DataProto) -> DataProto:
    """Use the advantages of calls, which were computed when the group had ended.

    Args:
        data: Batch of B rows, padded to T response tokens, with ``call_advantages`` and
            ``response_mask`` (B, T). Tokens that were removed from the mask get the advantage 0.

    Returns:
        ``data`` with ``advantages`` and ``returns`` (B, T).
    """
    advantages = data.batch["call_advantages"] * data.batch["response_mask"]
    data.batch["advantages"], data.batch["returns"] = advantages, advantages.clone()
    return data


def rollout_token_weights(response_mask: torch.Tensor, keys: Sequence[str]) -> torch.Tensor:
    """Return weights that turn a mean over tokens into a mean over rollouts of token means.

    A token of rollout i weighs ``N / (R * n_i)``: N sampled tokens in the batch, R rollouts that
    have any, n_i of them in rollout i. The weights have the mean 1, so the learning rate keeps its
    meaning.

    Args:
        response_mask: (B, T), 1 on sampled tokens.
        keys: Key of each row.

    Returns:
        (B, T) float32; 0 outside the mask.
    """
    mask = response_mask.to(torch.float64)
    rollouts = [rollout_of(key) for key in keys]
    names = {name: place for place, name in enumerate(dict.fromkeys(rollouts))}
    place = torch.tensor([names[name] for name in rollouts])
    tokens = torch.zeros(len(names), dtype=torch.float64).index_add_(0, place, mask.sum(dim=1))
    some = int((tokens > 0).sum())
    weights = tokens.sum() / (max(some, 1) * tokens.clamp(min=1.0))
    return (weights[place].unsqueeze(1) * mask).to(torch.float32)


def _last_rows(keys: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the last row of each rollout, and for each row the position of its rollout's."""
    last: dict[str, tuple[int, int]] = {}
    for row, key in enumerate(keys):
        index = int(key.rsplit("_", 1)[1])
        last[rollout_of(key)] = max(last.get(rollout_of(key), (-1, -1)), (index, row))
    order = {name: place for place, name in enumerate(last)}
    return [row for _, row in last.values()], [order[rollout_of(key)] for key in keys]


def _zero_single_sample_groups(data: DataProto, samples: Sequence[int]) -> None:
    """Set advantages and returns of groups with a single sample to 0.

    verl's estimators use the raw reward as the advantage there. With rewards of 0 and 1, every such
    rollout would be reinforced.
    """
    groups = np.asarray(data.non_tensor_batch["uid"])
    names, counts = np.unique(groups[list(samples)], return_counts=True)
    alone = np.isin(groups, names[counts == 1])
    for name in ("advantages", "returns"):
        data.batch[name][torch.from_numpy(alone)] = 0.0
