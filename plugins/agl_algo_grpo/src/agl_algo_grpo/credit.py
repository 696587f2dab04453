"""Credit by turn: from a group's rollouts to the advantage of each of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agl_algo_grpo.config import GRPOConfig
from agl_credit import Path, Turn, call_advantages, row_turns

if TYPE_CHECKING:
    from agl_algo_grpo.samples import Group, Sample

__all__ = ["call_advantages_of", "to_paths", "token_advantages"]

Floats = NDArray[np.float64]


def call_advantages_of(group: Group, config: GRPOConfig) -> list[Floats]:
    """Return the advantages of the calls of each sample of a group, without repeated ones."""
    advantages = call_advantages(
        to_paths(group.members), config.credit, normalise=config.advantage == "group"
    )
    return [a[one.repeated :] for one, a in zip(group.members, advantages, strict=True)]


def token_advantages(group: Group, config: GRPOConfig) -> list[list[Floats]]:
    """Return the advantages of each token, by sample of the group and row.

    Tokens that the policy did not sample have the advantage 0.
    """
    found: list[list[Floats]] = []
    for sample, own in zip(group.members, call_advantages_of(group, config), strict=True):
        of_rows = [np.zeros(len(row.token_ids)) for row in sample.rows]
        for (i, number), advantage in zip(sample.calls, own, strict=True):
            start, end = sample.rows[i].responses[number]
            of_rows[i][start:end] = advantage
        found.append(of_rows)
    return found


def to_paths(samples: Sequence[Sample]) -> list[Path]:
    """Return the paths of a group's samples; a parent must come before its forks."""
    paths: list[Path] = []
    places: dict[str, int] = {}
    for sample in samples:
        parent = None if sample.parent is None else places[sample.parent]
        before = () if parent is None else paths[parent].turns[: sample.repeated]
        places[sample.rollout_id] = len(paths)
        turns = (*before, *_turns(sample))
        paths.append(Path(sample.reward, turns, sample.rewards, parent, len(before)))
    return paths


def _turns(sample: Sample) -> list[Turn]:
    of_rows = [
        row_turns(row.token_ids, row.responses, row.logprobs, agent=row.agent, rewards=row.rewards)
        for row in sample.rows
    ]
    return [of_rows[row][number] for row, number in sample.calls]
