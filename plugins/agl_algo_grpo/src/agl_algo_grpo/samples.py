"""Select the rollouts to train on, and count the dropped ones by reason. No tensors here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agl_algo_grpo.config import GRPOConfig
from agl_core import semconv
from agl_core.adapter import CertificateSummary, TraceToTrajectory, TrajectoryRow
from agl_core.algorithm import RolloutOutcome
from agl_core.types import Span

__all__ = ["Decision", "Group", "Reason", "Sample", "Step", "decide", "staleness", "version_of"]

_VERSION: Final = "step-"


def version_of(steps: int) -> str:
    """Return the version of the weights after some training steps."""
    return f"{_VERSION}{steps}"


def staleness(row: TrajectoryRow, step: int) -> int:
    """Return how many updates older than ``step`` the weights are that sampled a row.

    The oldest of them, if the weights changed between two calls of the row.
    """
    return step - min(int(v.removeprefix(_VERSION)) for v in row.certificate.model_versions)


class Reason:
    """Why a rollout cannot be trained on, in words for logs and metrics."""

    NO_REWARD: Final = "no reward"
    BAD_REWARD: Final = "its reward is not a finite number"
    NO_TOKENS: Final = "no model call with token ids"
    NO_LOGPROBS: Final = "a call without log-probabilities"
    GAP: Final = "a call in the middle without token ids"
    BROKEN_CALL: Final = "a model call failed on the server's side"
    OTHER_WEIGHTS: Final = "sampled with other weights"
    OTHER_SAMPLING: Final = "sampled at another temperature, or with top_p or top_k"
    TOO_LONG: Final = "a row is longer than max_row_tokens"
    CUT_OFF: Final = "an answer was truncated"
    SMALL_GROUP: Final = "its group is too small"
    UNIFORM: Final = "the rewards of its group are all equal"


@dataclass(frozen=True, slots=True)
class Sample:
    """A rollout to train on.

    Attributes:
        rollout_id: Id of the rollout.
        reward: Reward to train with.
        rows: The rollout's tokens.
    """

    rollout_id: str
    reward: float
    rows: Sequence[TrajectoryRow]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one rollout: a sample, or the reason against it.

    Attributes:
        sample: The sample; None if the rollout cannot be used.
        reason: Reason against it; empty if there is none.
        rows: Number of rows of the rollout, used or not.
        failed: True if a repetition may help; False if the configuration excludes the rollout.
        certificates: Certificates of the rollout's rows, used or not.
    """

    sample: Sample | None
    reason: str = ""
    rows: int = 0
    failed: bool = True
    certificates: CertificateSummary = field(default_factory=CertificateSummary)


@dataclass(slots=True)
class Group:
    """The rollouts of one task.

    Attributes:
        index: Position of the task in the step.
        samples: The usable rollouts.
        missing: Number of unusable rollouts.
    """

    index: int
    samples: list[Sample] = field(default_factory=list[Sample])
    missing: int = 0

    @property
    def is_uniform(self) -> bool:
        """Whether all rewards are equal, so that every advantage is 0."""
        return len({sample.reward for sample in self.samples}) == 1


@dataclass(slots=True)
class Step:
    """The groups to train on in one step, and counts of the dropped rollouts.

    Attributes:
        number: Number of the step.
        seconds: Time that its rollouts took.
        groups: Groups to train on.
        partial: Number of those groups that are incomplete.
        uniform: Number of groups whose rewards are all equal, dropped ones included.
        dropped: Number of dropped rollouts by reason, including those of dropped groups.
        dropped_rows: Number of rows of the dropped rollouts.
        dropped_groups: Number of dropped groups.
        retried: Number of repeated rollouts by reason.
        rewards: Rewards of all usable rollouts, including those of dropped groups.
        certificates: Certificates of all rows, including dropped ones.
    """

    number: int = 0
    seconds: float = 0.0
    groups: list[Group] = field(default_factory=list[Group])
    partial: int = 0
    uniform: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    dropped_rows: int = 0
    dropped_groups: int = 0
    retried: Counter[str] = field(default_factory=Counter[str])
    rewards: list[float] = field(default_factory=list[float])
    certificates: CertificateSummary = field(default_factory=CertificateSummary)

    @property
    def samples(self) -> list[Sample]:
        """All rollouts to train on."""
        return [sample for group in self.groups for sample in group.samples]

    @classmethod
    def of(cls, decisions: Sequence[Sequence[Decision]], config: GRPOConfig) -> Step:
        """Return the step for the decisions on each group's rollouts."""
        step = cls()
        fewest = config.min_group_size or config.group_size
        for index, members in enumerate(decisions):
            samples = [decision.sample for decision in members if decision.sample is not None]
            for decision in members:
                step.certificates += decision.certificates
                if decision.sample is None:
                    step.dropped[decision.reason] += 1
                    step.dropped_rows += decision.rows
                else:
                    step.rewards.append(decision.sample.reward)
            group = Group(index, samples, len(members) - len(samples))
            unfit = ""
            if len(samples) < fewest:
                unfit = Reason.SMALL_GROUP
            elif group.is_uniform:
                step.uniform += 1
                if config.resample:
                    unfit = Reason.UNIFORM
            if unfit:
                step.dropped_groups += 1
                step.dropped[unfit] += len(samples)
                step.dropped_rows += sum(len(sample.rows) for sample in samples)
                continue
            step.partial += group.missing > 0
            step.groups.append(group)
        step.dropped += Counter()  # removes reasons that count 0
        return step

    def describe_dropped(self) -> str:
        """Return the counts of dropped rollouts in words; empty if there are none."""
        return ", ".join(f"{count} ({reason})" for reason, count in self.dropped.most_common())


def decide(
    outcome: RolloutOutcome,
    adapter: TraceToTrajectory,
    config: GRPOConfig,
    versions: Collection[str],
) -> Decision:
    """Decide whether a rollout can be trained on.

    Args:
        outcome: The rollout's outcome.
        adapter: Makes rows of its spans.
        config: Says how to treat failed rollouts and truncated answers.
        versions: Versions of the weights that may have sampled it.
    """
    rows, calls = _rows(outcome.spans, adapter)
    decision = _decide(outcome, rows, calls, config, versions)
    return replace(decision, certificates=CertificateSummary.of(rows))


def _decide(
    outcome: RolloutOutcome,
    rows: Sequence[TrajectoryRow],
    calls: Sequence[Span],
    config: GRPOConfig,
    versions: Collection[str],
) -> Decision:
    status = outcome.rollout.status
    reward = outcome.reward
    reason = "" if status == "succeeded" else f"rollout {status}"
    if not reason and reward is None:
        reason = Reason.NO_REWARD
    if not reason and reward is not None and not math.isfinite(reward):
        reason = Reason.BAD_REWARD
    flaw = _flaw(rows, calls, config, versions)
    if flaw or reason:
        usable = reason and not flaw and config.on_failure == "penalise"
        penalised = Sample(outcome.rollout.rollout_id, config.failure_reward, rows)
        return Decision(penalised if usable else None, reason or flaw, len(rows))
    assert reward is not None
    if any("length" in _finish_reasons(call) for call in calls):
        if config.on_overlong == "drop":
            return Decision(None, Reason.CUT_OFF, len(rows), failed=False)
        if config.on_overlong == "penalise":
            reward = config.overlong_reward
    return Decision(Sample(outcome.rollout.rollout_id, float(reward), rows), rows=len(rows))


def _rows(
    spans: Sequence[Span], adapter: TraceToTrajectory
) -> tuple[list[TrajectoryRow], list[Span]]:
    if not spans:
        return [], []
    rows, _ = adapter.adapt_with_report(spans)
    calls = [span for span in spans if span.name == semconv.SPAN_MODEL_CALL]
    return rows, sorted(calls, key=lambda span: span.sequence_id)


def _flaw(
    rows: Sequence[TrajectoryRow],
    calls: Sequence[Span],
    config: GRPOConfig,
    versions: Collection[str],
) -> str:
    """Return what is wrong with a rollout's tokens; empty if nothing is."""
    broken = {call.span_id for call in calls if _is_broken(call)}
    if any(not _was_repeated(call, calls) for call in calls if call.span_id in broken):
        return Reason.BROKEN_CALL
    if broken.intersection(span_id for row in rows for span_id in row.span_ids):
        return Reason.BROKEN_CALL  # tokens of a truncated stream are in a row
    if not rows:
        return Reason.NO_TOKENS
    for row in rows:
        certificate = row.certificate
        if not certificate.ids_present:
            return Reason.GAP
        if not certificate.logprobs_present:
            return Reason.NO_LOGPROBS
        found = certificate.model_versions
        if not found or not set(found) <= set(versions):
            return Reason.OTHER_WEIGHTS
        if len(row.token_ids) > config.max_row_tokens:
            return Reason.TOO_LONG
    if any(_is_sampled_otherwise(call, config) for call in calls):
        return Reason.OTHER_SAMPLING
    return ""


def _is_broken(call: Span) -> bool:
    """Return whether a call failed through no fault of the agent: not a 4xx, not a disconnect."""
    if call.status.status_code != "ERROR":
        return False
    if call.attributes.get("error.type") == "client_disconnected":
        return False
    status: Any = call.attributes.get("http.response.status_code")
    return not (isinstance(status, int) and 400 <= status < 500)


def _was_repeated(call: Span, calls: Sequence[Span]) -> bool:
    """Return whether a later call with the same messages succeeded."""
    messages = call.attributes.get("gen_ai.input.messages")
    return any(
        later.sequence_id > call.sequence_id
        and later.status.status_code != "ERROR"
        and later.attributes.get("gen_ai.input.messages") == messages
        for later in calls
    )


def _is_sampled_otherwise(call: Span, config: GRPOConfig) -> bool:
    def requested(key: str, default: float) -> float:
        value: Any = call.attributes.get(f"gen_ai.request.{key}")
        return float(value) if isinstance(value, (int, float)) else default

    if requested("temperature", config.temperature) != config.temperature:
        return True
    return requested("top_p", 1.0) < 1 or requested("top_k", 0) > 0


def _finish_reasons(call: Span) -> Sequence[Any]:
    value: Any = call.attributes.get("gen_ai.response.finish_reasons")
    return value if isinstance(value, (list, tuple)) else ()
