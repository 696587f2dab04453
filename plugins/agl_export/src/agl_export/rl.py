"""Rollouts as a dataset for offline reinforcement learning: tokens, masks, log-probabilities.

Rewards are not normalised. Rows with equal ``task`` form a group, so training can compute any
advantage from the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from agl_adapter_trajectory import read_logprobs
from agl_adapters import ModelCall, TracerTraceToTriplet, altered_sampling
from agl_core.adapter import Reason
from agl_core.errors import InvalidArgumentError
from agl_core.types import Span
from agl_export.report import ExportReport, Skip
from agl_export.samples import Row, Sample, about, trajectories
from agl_export.sft import certificate_columns, select_by_reward

__all__ = ["RlOptions", "rl_rows"]

_WITHOUT_IDS: Final = (Reason.NO_TOKEN_IDS, Reason.INCOMPLETE_IDS)


@dataclass(frozen=True, slots=True)
class RlOptions:
    """Options of an RL dataset.

    Attributes:
        form: ``trajectory``: a row per sequence of calls that extend each other, with
            ``input_ids``, ``mask`` (1 where the model sampled), ``logprobs`` (0.0 where it did not)
            of one length, ``prompt_length``, and ``responses`` and ``call_rewards`` per call.
            ``triplets``: a row per call, with ``prompt_ids``, ``response_ids``, ``logprobs`` of the
            response (null if unknown), ``call_reward`` and ``altered_sampling``.
        min_reward: Smallest reward of a rollout; None: any.
        agent_match: Regular expression searched in agent names; None: all calls.
        require_logprobs: Leave out rollouts in which a sampled token lacks its log-probability.
        require_ids: Leave out rollouts whose context contains a response without token ids; with
            ``triplets``, rollouts with any such response.
        keep_auxiliary: Keep auxiliary calls, such as those for a title.
    """

    form: Literal["trajectory", "triplets"] = "trajectory"
    min_reward: float | None = None
    agent_match: str | None = None
    require_logprobs: bool = False
    require_ids: bool = False
    keep_auxiliary: bool = False


def rl_rows(samples: Sequence[Sample], options: RlOptions, report: ExportReport) -> list[Row]:
    """Return the rows of one task, in the order of its samples, without rollouts without reward.

    Args:
        samples: All rollouts of one task.
        options: Options of the dataset.
        report: Counts each sample, as used or as left out.
    """
    rows: list[Row] = []
    build = _trajectory_rows if options.form == "trajectory" else _triplet_rows
    for sample in select_by_reward(samples, report, required=True, minimum=options.min_reward):
        try:
            found = build(sample, options, report)
        except InvalidArgumentError:
            report.leave_out(Skip.UNREADABLE)
            continue
        if isinstance(found, Skip):
            report.leave_out(found)
        else:
            report.used += 1
            rows += found
    return rows


def _trajectory_rows(sample: Sample, options: RlOptions, report: ExportReport) -> list[Row] | Skip:
    found = trajectories(
        sample.spans,
        agent_match=options.agent_match,
        keep_auxiliary=options.keep_auxiliary,
        report=report.adapters,
    )
    if not found:
        return Skip.NO_TOKEN_IDS
    if options.require_logprobs and not all(r.certificate.logprobs_present for r in found):
        return Skip.NO_LOGPROBS
    if options.require_ids and not all(row.certificate.ids_present for row in found):
        return Skip.GAP
    return [
        {
            "input_ids": row.token_ids,
            "mask": row.mask,
            "logprobs": row.logprobs,
            "prompt_length": row.prompt_length,
            "responses": [list(place) for place in row.responses],
            "call_rewards": row.rewards,
            **about(sample),
            "agent": row.agent,
            **certificate_columns(row),
        }
        for row in found
    ]


def _triplet_rows(sample: Sample, options: RlOptions, report: ExportReport) -> list[Row] | Skip:
    adapter = TracerTraceToTriplet(
        llm_call_match=None,
        agent_match=options.agent_match,
        skip_empty_token_spans=True,
        keep_auxiliary=options.keep_auxiliary,
    )
    found, counted = adapter.adapt_with_report(sample.spans)
    for (item, why), count in counted.left_out.items():
        report.adapters.leave_out(item, why, count)
    if not found:
        return Skip.NO_TOKEN_IDS
    if options.require_ids and any(("call", why) in counted.left_out for why in _WITHOUT_IDS):
        return Skip.GAP
    altered = _altered_sampling(sample.spans)
    rows: list[Row] = []
    for triplet in found:
        response_ids = triplet.response["token_ids"]
        logprobs = read_logprobs(triplet.response.get("logprobs"), len(response_ids))
        if logprobs is None and options.require_logprobs:
            return Skip.NO_LOGPROBS
        rows.append(
            {
                "prompt_ids": triplet.prompt["token_ids"],
                "response_ids": response_ids,
                "logprobs": logprobs,
                "call_reward": triplet.reward,
                **about(sample),
                "agent": triplet.metadata["agent_name"],
                "response_id": triplet.metadata["response_id"],
                "altered_sampling": altered.get(triplet.metadata["response_id"], []),
            }
        )
    return rows


def _altered_sampling(spans: Sequence[Span]) -> dict[str | None, list[str]]:
    """Return the parameters that the log-probabilities do not know, by the answer's id.

    Answers without an id have those of all such answers.
    """
    found: dict[str | None, set[str]] = {}
    for span in spans:
        if names := altered_sampling(span.attributes):
            found.setdefault(ModelCall(span.attributes).response_id, set()).update(names)
    return {answer: sorted(names) for answer, names in found.items()}
