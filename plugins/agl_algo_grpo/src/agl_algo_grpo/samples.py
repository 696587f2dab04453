"""From what came of rollouts to what is trained on; everything left out is counted. No tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agl_algo_grpo.config import GRPOConfig
from agl_core import semconv
from agl_core.adapter import CertificateSummary, TraceToTrajectory, TrajectoryRow
from agl_core.algorithm import RolloutOutcome
from agl_core.types import Span

__all__ = ["Group", "Reason", "Sample", "Step", "Verdict", "judge"]


class Reason:
    """Why a rollout cannot be trained on; people read them."""

    NO_REWARD: Final = "no reward"
    BAD_REWARD: Final = "its reward is no finite number"
    NO_TOKENS: Final = "no model call with token ids"
    NO_LOGPROBS: Final = "a call without log-probabilities"
    GAP: Final = "a call in the middle without token ids"
    BROKEN_CALL: Final = "a model call failed for want of the server"
    OTHER_WEIGHTS: Final = "sampled by other weights"
    OTHER_SAMPLING: Final = "sampled at another temperature, or cut by top_p or top_k"
    TOO_LONG: Final = "a row is longer than max_row_tokens"
    CUT_OFF: Final = "an answer was cut off"


@dataclass(frozen=True, slots=True)
class Sample:
    """A rollout to train on.

    Attributes:
        rollout_id: Which.
        reward: What it is trained with.
        rows: Its tokens.
    """

    rollout_id: str
    reward: float
    rows: Sequence[TrajectoryRow]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is made of a rollout: a sample, or the reason why not.

    Attributes:
        sample: None if it cannot be used.
        reason: Empty if it can.
        rows: How many rows it has in any case.
        failed: Whether it is the rollout that failed, and not a choice of the configuration.
        certificates: What is certified of its rows, in any case.
    """

    sample: Sample | None
    reason: str = ""
    rows: int = 0
    failed: bool = True
    certificates: CertificateSummary = field(default_factory=CertificateSummary)


@dataclass(slots=True)
class Group:
    """What came of one task.

    Attributes:
        index: Its place in the step.
        samples: Its usable rollouts.
        missing: How many are not.
    """

    index: int
    samples: list[Sample] = field(default_factory=list[Sample])
    missing: int = 0


@dataclass(slots=True)
class Step:
    """All that a step is trained on, and the count of what it is not.

    Attributes:
        groups: Those that are trained on.
        partial: How many of them lack rollouts.
        dropped: Rollouts left out, by reason; those of groups left out, too.
        dropped_rows: Rows of those.
        dropped_groups: Groups left out.
        retried: Rollouts that were made anew, by the reason.
        rewards: Of all rollouts that have one, also of those left out.
        certificates: What is certified of all rows, also of those left out.
    """

    groups: list[Group] = field(default_factory=list[Group])
    partial: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    dropped_rows: int = 0
    dropped_groups: int = 0
    retried: Counter[str] = field(default_factory=Counter[str])
    rewards: list[float] = field(default_factory=list[float])
    certificates: CertificateSummary = field(default_factory=CertificateSummary)

    @property
    def samples(self) -> list[Sample]:
        """All rollouts that are trained on."""
        return [sample for group in self.groups for sample in group.samples]

    @classmethod
    def of(cls, verdicts: Sequence[Sequence[Verdict]], config: GRPOConfig) -> Step:
        """Sum up the verdicts on each group's rollouts."""
        step = cls()
        fewest = config.min_group_size or config.group_size
        for index, members in enumerate(verdicts):
            samples = [verdict.sample for verdict in members if verdict.sample is not None]
            for verdict in members:
                step.certificates += verdict.certificates
                if verdict.sample is None:
                    step.dropped[verdict.reason] += 1
                    step.dropped_rows += verdict.rows
                else:
                    step.rewards.append(verdict.sample.reward)
            if len(samples) < fewest:
                step.dropped_groups += 1
                step.dropped["its group is too small"] += len(samples)
                step.dropped_rows += sum(len(sample.rows) for sample in samples)
                continue
            group = Group(index, samples, len(members) - len(samples))
            step.partial += group.missing > 0
            step.groups.append(group)
        step.dropped += Counter()  # without zeros
        return step

    def describe_losses(self) -> str:
        """Say what was left out; empty if nothing was."""
        return ", ".join(f"{count} ({reason})" for reason, count in self.dropped.most_common())


def judge(
    outcome: RolloutOutcome, adapter: TraceToTrajectory, config: GRPOConfig, version: str
) -> Verdict:
    """Say whether a rollout can be trained on.

    Args:
        outcome: What came of it.
        adapter: Makes rows of its spans.
        config: What to do with what failed, and what was cut off.
        version: The weights it has to be sampled by.
    """
    rows, calls = _rows(outcome.spans, adapter)
    verdict = _judge(outcome, rows, calls, config, version)
    return replace(verdict, certificates=CertificateSummary.of(rows))


def _judge(
    outcome: RolloutOutcome,
    rows: Sequence[TrajectoryRow],
    calls: Sequence[Span],
    config: GRPOConfig,
    version: str,
) -> Verdict:
    status = outcome.rollout.status
    reward = outcome.reward
    reason = "" if status == "succeeded" else f"rollout {status}"
    if not reason and reward is None:
        reason = Reason.NO_REWARD
    if not reason and reward is not None and not math.isfinite(reward):
        reason = Reason.BAD_REWARD
    flaw = _flaw(rows, calls, config, version)
    if flaw or reason:
        usable = reason and not flaw and config.on_failure == "penalise"
        penalised = Sample(outcome.rollout.rollout_id, config.failure_reward, rows)
        return Verdict(penalised if usable else None, reason or flaw, len(rows))
    assert reward is not None
    if any("length" in _reasons(call) for call in calls):
        if config.on_overlong == "drop":
            return Verdict(None, Reason.CUT_OFF, len(rows), failed=False)
        if config.on_overlong == "penalise":
            reward = config.overlong_reward
    return Verdict(Sample(outcome.rollout.rollout_id, float(reward), rows), rows=len(rows))


def _rows(
    spans: Sequence[Span], adapter: TraceToTrajectory
) -> tuple[list[TrajectoryRow], list[Span]]:
    if not spans:
        return [], []
    rows, _ = adapter.adapt_with_report(spans)
    calls = [span for span in spans if span.name == semconv.SPAN_MODEL_CALL]
    return rows, sorted(calls, key=lambda span: span.sequence_id)


def _flaw(
    rows: Sequence[TrajectoryRow], calls: Sequence[Span], config: GRPOConfig, version: str
) -> str:
    """Say what is wrong with a rollout's tokens; empty if nothing is."""
    broken = {call.span_id for call in calls if _is_broken(call)}
    if any(not _was_repeated(call, calls) for call in calls if call.span_id in broken):
        return Reason.BROKEN_CALL
    if broken.intersection(span_id for row in rows for span_id in row.span_ids):
        return Reason.BROKEN_CALL  # what came of it before it broke is in the tokens
    if not rows:
        return Reason.NO_TOKENS
    for row in rows:
        certificate = row.certificate
        if not certificate.ids_present:
            return Reason.GAP
        if not certificate.logprobs_present:
            return Reason.NO_LOGPROBS
        if certificate.model_versions != [version]:
            return Reason.OTHER_WEIGHTS
        if len(row.token_ids) > config.max_row_tokens:
            return Reason.TOO_LONG
    if any(_is_sampled_otherwise(call, config) for call in calls):
        return Reason.OTHER_SAMPLING
    return ""


def _is_broken(call: Span) -> bool:
    """Whether a call ended early, and neither by what the agent sent nor because it went away."""
    if call.status.status_code != "ERROR":
        return False
    if call.attributes.get("error.type") == "client_disconnected":
        return False
    status: Any = call.attributes.get("http.response.status_code")
    return not (isinstance(status, int) and 400 <= status < 500)


def _was_repeated(call: Span, calls: Sequence[Span]) -> bool:
    """Whether the agent asked the same again, and was answered."""
    asked = call.attributes.get("gen_ai.input.messages")
    return any(
        later.sequence_id > call.sequence_id
        and later.status.status_code != "ERROR"
        and later.attributes.get("gen_ai.input.messages") == asked
        for later in calls
    )


def _is_sampled_otherwise(call: Span, config: GRPOConfig) -> bool:
    def said(key: str, default: float) -> float:
        value: Any = call.attributes.get(f"gen_ai.request.{key}")
        return float(value) if isinstance(value, (int, float)) else default

    if said("temperature", config.temperature) != config.temperature:
        return True
    return said("top_p", 1.0) < 1 or said("top_k", 0) > 0


def _reasons(call: Span) -> Sequence[Any]:
    value: Any = call.attributes.get("gen_ai.response.finish_reasons")
    return value if isinstance(value, (list, tuple)) else ()
