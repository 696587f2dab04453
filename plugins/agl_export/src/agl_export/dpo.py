"""Pairs of rollouts of one task as a dataset for direct preference optimisation (DPO).

DPO: Rafailov et al. 2023 (arXiv:2305.18290). The common prefix of two rollouts is the prompt. The
continuation of the rollout with the larger reward is chosen, the other is rejected. By default a
continuation is the first turn in which the two differ, since that turn made the difference
(step-wise DPO, Lai et al. 2024, arXiv:2406.18629) and later turns also contain text of tools and
users, which the model should not learn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from agl_adapter_trajectory import TrajectoryRow
from agl_core.errors import InvalidArgumentError
from agl_core.types import OpenAIMessages
from agl_export.report import ExportReport, Skip
from agl_export.samples import (
    Row,
    Sample,
    ToolArguments,
    comparable,
    conversations,
    trajectories,
    with_arguments,
)
from agl_export.sft import select_by_reward

__all__ = ["DpoOptions", "dpo_rows"]


@dataclass(frozen=True, slots=True)
class DpoOptions:
    """Options of a DPO dataset.

    Attributes:
        form: ``messages``: ``prompt``, ``chosen`` and ``rejected`` as lists of messages in OpenAI's
            chat format, and ``tools``. ``tokens``: ``prompt_ids``, ``chosen_ids`` and
            ``rejected_ids``, the tokens that the model saw and sampled.
        pairs: ``best-worst``: one pair per task. ``all``: all pairs whose rewards differ enough.
        margin: Smallest difference of rewards in a pair; equal rewards never make one.
        max_pairs: Most pairs per task, those with the largest differences first; None: no limit.
        completion: ``turn``: the first turn in which the two differ. ``rest``: all turns from there
            on, those of tools and users included.
        min_reward: Smallest reward of the chosen rollout; None: any.
        agent_match: Regular expression searched in agent names; None: all calls.
        tool_arguments: Form of the arguments of tool calls.
        keep_auxiliary: Keep auxiliary calls, such as those for a title.
    """

    form: Literal["messages", "tokens"] = "messages"
    pairs: Literal["best-worst", "all"] = "best-worst"
    margin: float = 0.0
    max_pairs: int | None = None
    completion: Literal["turn", "rest"] = "turn"
    min_reward: float | None = None
    agent_match: str | None = None
    tool_arguments: ToolArguments = "object"
    keep_auxiliary: bool = False


@dataclass(frozen=True, slots=True)
class _ReadSample:
    """A sample with its conversations or trajectories."""

    sample: Sample
    reward: float
    content: Sequence[OpenAIMessages] | Sequence[TrajectoryRow]


def dpo_rows(samples: Sequence[Sample], options: DpoOptions, report: ExportReport) -> list[Row]:
    """Return the pairs of one task, those with the largest difference in reward first.

    Args:
        samples: All rollouts of one task.
        options: Options of the dataset.
        report: Counts each sample: as used if it is in a pair, otherwise as left out, with the
            reason of its best candidate.
    """
    read = list(_read(samples, options, report))
    rows: list[Row] = []
    used: set[str] = set()
    failed: dict[str, Counter[Skip]] = {one.sample.rollout_id: Counter() for one in read}
    limit = options.max_pairs if options.pairs == "all" else 1
    for better, worse in _candidates(read, options):
        ids = better.sample.rollout_id, worse.sample.rollout_id
        full = limit is not None and len(rows) >= limit
        pair = Skip.TOO_MANY if full else _pair(better, worse, options)
        if isinstance(pair, Skip):
            for rollout_id in ids:
                failed[rollout_id][pair] += 1
            continue
        rows.append(pair)
        used.update(ids)
    for rollout_id, reasons in failed.items():
        if rollout_id in used:
            report.used += 1
        else:
            order = (Skip.TOO_MANY, Skip.SAME, Skip.NO_FORK)
            reason = next((skip for skip in order if reasons[skip]), Skip.NO_PARTNER)
            report.leave_out(reason)
    return rows


def _read(
    samples: Sequence[Sample], options: DpoOptions, report: ExportReport
) -> Iterator[_ReadSample]:
    read = conversations if options.form == "messages" else trajectories
    for sample in select_by_reward(samples, report, required=True):
        try:
            content = read(
                sample.spans,
                agent_match=options.agent_match,
                keep_auxiliary=options.keep_auxiliary,
                report=report.adapters,
            )
        except InvalidArgumentError:
            report.leave_out(Skip.UNREADABLE)
            continue
        if content:
            assert sample.reward is not None
            yield _ReadSample(sample, sample.reward, content)
        else:
            messages = options.form == "messages"
            report.leave_out(Skip.NO_MESSAGES if messages else Skip.NO_TOKEN_IDS)


def _candidates(
    read: Sequence[_ReadSample], options: DpoOptions
) -> list[tuple[_ReadSample, _ReadSample]]:
    """Return the pairs that the rewards allow, better rollout first, largest difference first.

    Of equal differences the pair with the larger reward comes first, then the order of samples.
    """
    ranked = sorted(read, key=lambda one: one.reward, reverse=True)
    allowed = [
        (better, worse)
        for better, worse in combinations(ranked, 2)
        if better.reward > worse.reward
        and _is_at_least(better.reward - worse.reward, options.margin)
        and (options.min_reward is None or better.reward >= options.min_reward)
    ]
    return sorted(allowed, key=lambda pair: pair[1].reward - pair[0].reward)


def _is_at_least(difference: float, margin: float) -> bool:
    """Compare as in decimals: as floats, 1.0 - 0.9 is less than 0.1."""
    return difference >= margin or math.isclose(difference, margin)


def _pair(better: _ReadSample, worse: _ReadSample, options: DpoOptions) -> Row | Skip:
    build = _message_pair if options.form == "messages" else _token_pair
    outcome: Row | Skip = Skip.NO_FORK
    for first in better.content:
        for second in worse.content:
            outcome = build(first, second, options)  # pyright: ignore[reportArgumentType]
            if not isinstance(outcome, Skip):
                return {
                    **outcome,
                    "reward_chosen": better.reward,
                    "reward_rejected": worse.reward,
                    "task": better.sample.task,
                    "rollout_chosen": better.sample.rollout_id,
                    "rollout_rejected": worse.sample.rollout_id,
                }
    return outcome


def _message_pair(better: OpenAIMessages, worse: OpenAIMessages, options: DpoOptions) -> Row | Skip:
    chosen, rejected = better["messages"], worse["messages"]
    fork = 0
    for one, other in zip(comparable(chosen), comparable(rejected), strict=False):
        if one != other:
            break
        fork += 1
    if fork == len(chosen) == len(rejected):
        return Skip.SAME
    sides = [messages[fork:] for messages in (chosen, rejected)]
    if fork == 0 or not all(side and side[0]["role"] == "assistant" for side in sides):
        return Skip.NO_FORK
    if options.completion == "turn":
        sides = [side[:1] for side in sides]
    form = options.tool_arguments
    return {
        "prompt": with_arguments(chosen[:fork], form),
        "chosen": with_arguments(sides[0], form),
        "rejected": with_arguments(sides[1], form),
        **({"tools": better["tools"]} if better["tools"] else {}),
    }


def _token_pair(better: TrajectoryRow, worse: TrajectoryRow, options: DpoOptions) -> Row | Skip:
    for one, other in zip(better.responses, worse.responses, strict=False):
        start = one[0]
        if start != other[0] or better.token_ids[:start] != worse.token_ids[:start]:
            return Skip.NO_FORK  # the prompts differ already
        ends = (one[1], other[1])
        sides = [
            row.token_ids[start : end if options.completion == "turn" else None]
            for row, end in zip((better, worse), ends, strict=True)
        ]
        answers = [row.token_ids[start:end] for row, end in zip((better, worse), ends, strict=True)]
        if answers[0] != answers[1]:
            return {
                "prompt_ids": better.token_ids[:start],
                "chosen_ids": sides[0],
                "rejected_ids": sides[1],
            }
    return Skip.SAME if better.token_ids == worse.token_ids else Skip.NO_FORK
