"""Best-of-n rollouts as a dataset for supervised fine-tuning (rejection sampling).

The model is trained on its own rollouts with the largest rewards: Yuan et al. 2023
(arXiv:2308.01825) and Llama 2 (arXiv:2307.09288, section 3.2.3) call it rejection sampling.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from agl_adapter_trajectory import TrajectoryRow
from agl_core.errors import InvalidArgumentError
from agl_export.report import ExportReport, Skip
from agl_export.samples import (
    Row,
    Sample,
    ToolArguments,
    about,
    comparable,
    conversations,
    trajectories,
    with_arguments,
)

__all__ = ["IGNORED", "SftOptions", "certificate_columns", "select_by_reward", "sft_rows"]

IGNORED = -100
"""Label of a token that is not trained on: ``ignore_index`` of PyTorch's cross entropy."""


@dataclass(frozen=True, slots=True)
class SftOptions:
    """Options of an SFT dataset.

    Attributes:
        form: ``messages``: ``messages`` and ``tools`` in OpenAI's chat format, a row per
            conversation. ``tokens``: ``input_ids`` and ``labels``, the tokens that the model saw
            and sampled, a row per trajectory; tokens that it did not sample have label ``-100``.
        best: Most rollouts per task, those with the largest rewards; None: all.
        min_reward: Smallest reward of a rollout; None: any, and without ``best`` also
            rollouts without reward.
        agent_match: Regular expression searched in agent names; None: all calls.
        keep_duplicates: Keep rollouts whose content equals that of a better one of their task.
        tool_arguments: Form of the arguments of tool calls.
        keep_auxiliary: Keep auxiliary calls, such as those for a title.
    """

    form: Literal["messages", "tokens"] = "messages"
    best: int | None = None
    min_reward: float | None = None
    agent_match: str | None = None
    keep_duplicates: bool = False
    tool_arguments: ToolArguments = "object"
    keep_auxiliary: bool = False


def sft_rows(samples: Sequence[Sample], options: SftOptions, report: ExportReport) -> list[Row]:
    """Return the rows of one task, best sample first.

    Equal rewards keep the order of the samples.

    Args:
        samples: All rollouts of one task.
        options: Options of the dataset.
        report: Counts each sample, as used or as left out.
    """
    needed = options.best is not None or options.min_reward is not None
    ranked = sorted(
        select_by_reward(samples, report, required=needed, minimum=options.min_reward),
        key=lambda sample: -math.inf if sample.reward is None else sample.reward,
        reverse=True,
    )
    build = _message_rows if options.form == "messages" else _token_rows
    rows: list[Row] = []
    seen: set[Hashable] = set()
    taken = 0
    for sample in ranked:
        if options.best is not None and taken >= options.best:
            report.leave_out(Skip.NOT_BEST)
            continue
        try:
            found, content = build(sample, options, report)
        except InvalidArgumentError:
            report.leave_out(Skip.UNREADABLE)
            continue
        if not found:
            no_tokens = options.form == "tokens"
            report.leave_out(Skip.NO_TOKEN_IDS if no_tokens else Skip.NO_MESSAGES)
        elif content in seen and not options.keep_duplicates:
            report.leave_out(Skip.DUPLICATE)
        else:
            seen.add(content)
            taken += 1
            report.used += 1
            rows += found
    return rows


def select_by_reward(
    samples: Sequence[Sample],
    report: ExportReport,
    *,
    required: bool,
    minimum: float | None = None,
) -> list[Sample]:
    """Return the samples that their reward does not exclude; count the others.

    Args:
        samples: Any rollouts.
        report: Counts the others.
        required: Leave out samples without a reward.
        minimum: Smallest reward; None: any.
    """
    kept: list[Sample] = []
    for sample in samples:
        if sample.reward is None:
            if required:
                report.leave_out(Skip.NO_REWARD)
                continue
        elif not math.isfinite(sample.reward):
            report.leave_out(Skip.NOT_A_NUMBER)
            continue
        elif minimum is not None and sample.reward < minimum:
            report.leave_out(Skip.BELOW)
            continue
        kept.append(sample)
    return kept


def _message_rows(
    sample: Sample, options: SftOptions, report: ExportReport
) -> tuple[list[Row], Hashable]:
    found = conversations(
        sample.spans,
        agent_match=options.agent_match,
        keep_auxiliary=options.keep_auxiliary,
        report=report.adapters,
    )
    rows: list[Row] = [
        {
            "messages": with_arguments(one["messages"], options.tool_arguments),
            **({"tools": one["tools"]} if one["tools"] else {}),
            **about(sample),
        }
        for one in found
        if any(message["role"] == "assistant" for message in one["messages"])
    ]
    return rows, repr([comparable(one["messages"]) for one in found])


def _token_rows(
    sample: Sample, options: SftOptions, report: ExportReport
) -> tuple[list[Row], Hashable]:
    found = trajectories(
        sample.spans,
        agent_match=options.agent_match,
        keep_auxiliary=options.keep_auxiliary,
        report=report.adapters,
    )
    rows = [
        {
            "input_ids": row.token_ids,
            "labels": [
                token if sampled else IGNORED
                for token, sampled in zip(row.token_ids, row.mask, strict=True)
            ],
            **about(sample),
            "agent": row.agent,
            **certificate_columns(row),
        }
        for row in found
    ]
    return rows, tuple(tuple(row.token_ids) for row in found)


def certificate_columns(row: TrajectoryRow) -> Row:
    """Return a certificate as columns; see :class:`~agl_adapter_trajectory.Certificate`."""
    certificate = row.certificate
    return {
        "ids_present": certificate.ids_present,
        "logprobs_present": certificate.logprobs_present,
        "altered_sampling": certificate.altered_sampling,
        "models": certificate.models,
        "model_versions": certificate.model_versions,
        "break_cause": None if certificate.break_cause is None else str(certificate.break_cause),
    }
