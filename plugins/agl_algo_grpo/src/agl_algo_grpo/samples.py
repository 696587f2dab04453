"""Select the rollouts to train on, and count the dropped ones by reason. No tensors here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agl_adapter_trajectory import CertificateSummary, TraceToTrajectory, TrajectoryRow
from agl_adapters import (
    ModelCall,
    altered_sampling,
    auxiliary_calls,
    failed_at_server,
    other_sampling,
    request_parameters,
)
from agl_algo_grpo import credit
from agl_algo_grpo.config import GRPOConfig
from agl_core import semconv
from agl_core.algorithm import RewardRange, RewardScale, RolloutOutcome
from agl_core.types import Span
from agl_credit import named_rewards

__all__ = [
    "FAILURE",
    "Decision",
    "Group",
    "Learner",
    "Reason",
    "Sample",
    "Step",
    "decide",
    "lost_calls",
    "reward_of",
    "staleness",
    "version_of",
]

_VERSION: Final = "step-"
_REQUEST: Final = "gen_ai.request."
_MODEL: Final = f"{_REQUEST}model"
_RESPONSE_IDS: Final = "response_token_ids"
_END_VERSION: Final = f"{semconv.MODEL_VERSION}.end"
"""Version of the weights at the end of a call, if they changed while it ran."""


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
    INFRASTRUCTURE: Final = "the proxy or the store failed it, not the agent"
    OTHER_WEIGHTS: Final = "sampled with other weights"
    OTHER_SAMPLING: Final = (
        "sampled at another temperature, or with top_p, top_k, a penalty, a format or the like"
    )
    SEVERAL_CHOICES: Final = "a call with several choices, of which the used one is not known"
    TOO_LONG: Final = "a row is longer than max_row_tokens"
    CUT_OFF: Final = "an answer was truncated"
    SMALL_GROUP: Final = "its group is too small"
    UNIFORM: Final = "the rewards of its group are all equal"
    NOT_CALLED: Final = "it called other policies only"
    PAST_PARENT: Final = "a fork after the last call of its policy"

    @classmethod
    def is_lasting(cls, reason: str) -> bool:
        """Return whether the agent or the configuration causes it, so that it would go on."""
        lasting = (cls.BAD_REWARD, cls.NO_TOKENS, cls.NO_LOGPROBS, cls.OTHER_SAMPLING, cls.TOO_LONG)
        return reason in lasting or reason.startswith(cls.NO_REWARD)


FAILURE: Final = -math.inf
"""Reward of a sample that failed, until its group is known: below all others of it."""


@dataclass(frozen=True, slots=True)
class Learner:
    """A policy as the selection of rollouts sees it.

    Attributes:
        config: Options of the policy.
        model: Name that agents call it by.
    """

    config: GRPOConfig
    model: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A rollout to train on.

    Attributes:
        rollout_id: Id of the rollout.
        reward: Reward to train with.
        rows: The rollout's tokens.
        calls: Its calls in order, as indices of a row and of a response in it; those that a fork
            repeats are not among them.
        rewards: The numbers of its reward, by name.
        parent: Id of the rollout that it is a fork of.
        repeated: Number of the parent's calls that a fork repeats.
    """

    rollout_id: str
    reward: float
    rows: Sequence[TrajectoryRow]
    calls: Sequence[tuple[int, int]] = ()
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    parent: str | None = None
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one rollout: a sample, or the reason against it.

    Attributes:
        sample: The sample; None if the rollout cannot be used.
        reason: Reason against it; empty if there is none.
        rows: Number of rows of the rollout, used or not.
        failed: True if a repetition may help; False if the configuration excludes the rollout.
        certificates: Certificates of the rollout's rows, used or not.
        tokens: Number of its sampled tokens, used or not.
        detail: More about the reason, for people.
    """

    sample: Sample | None
    reason: str = ""
    rows: int = 0
    failed: bool = True
    tokens: int = 0
    certificates: CertificateSummary = field(default_factory=CertificateSummary)
    detail: str = ""

    @property
    def is_absent(self) -> bool:
        """Whether the rollout is not part of the policy's group, which is complete without it."""
        return self.reason == Reason.NOT_CALLED


@dataclass(slots=True)
class Group:
    """The rollouts of one task.

    Attributes:
        index: Position of the task in the step.
        samples: The usable rollouts.
        missing: Number of unusable rollouts.
        forks: The usable forks of usable rollouts.
    """

    index: int
    samples: list[Sample] = field(default_factory=list[Sample])
    missing: int = 0
    forks: list[Sample] = field(default_factory=list[Sample])

    @property
    def members(self) -> list[Sample]:
        """Rollouts and forks to train on; a fork comes after its parent."""
        return [*self.samples, *self.forks]

    def count_failures(self, scale: RewardScale) -> None:
        """Set the rewards of failures (:data:`FAILURE`) to what they count on a scale.

        Rewards by name have scales of their own, which this group shows.
        """
        finished = [one for one in self.members if one.reward != FAILURE]
        scale.learn(one.reward for one in finished)
        counted = 0.0 if scale.failure == FAILURE else scale.failure  # all equal in any case
        by_name: dict[str, float] = {}
        for name in dict.fromkeys(name for one in finished for name in one.rewards):
            own = RewardScale()
            own.learn(one.rewards.get(name) for one in finished)
            by_name[name] = own.failure

        def of(samples: list[Sample]) -> list[Sample]:
            return [
                replace(s, reward=counted, rewards=by_name) if s.reward == FAILURE else s
                for s in samples
            ]

        self.samples, self.forks = of(self.samples), of(self.forks)

    @property
    def is_uniform(self) -> bool:
        """Whether all final rewards are equal; see also :meth:`teaches`."""
        return len({sample.reward for sample in self.members}) == 1

    def teaches(self, config: GRPOConfig) -> bool:
        """Return whether a token has an advantage other than 0.

        Credit by turn may tell apart rollouts whose final rewards are equal.
        """
        if config.credit.type == "group":
            return not self.is_uniform
        advantages = credit.call_advantages_of(self, config)
        return any(bool(of_calls.any()) for of_calls in advantages)


@dataclass(slots=True)
class Step:
    """The groups to train on in one step, and counts of the dropped rollouts.

    Attributes:
        number: Number of the step.
        seconds: Time that its rollouts took.
        groups: Groups to train on.
        partial: Number of those groups that are incomplete.
        uniform: Number of groups without an advantage, since rewards are all equal; dropped ones
            included.
        dropped: Number of dropped rollouts by reason, including those of dropped groups.
        dropped_rows: Number of rows of the dropped rollouts.
        dropped_groups: Number of dropped groups.
        retried: Number of repeated rollouts by reason.
        rewards: Rewards of all usable rollouts, including those of dropped groups, without forks.
        sampled_tokens: Number of tokens sampled in the step, in used rollouts, dropped ones,
            repetitions and forks.
        certificates: Certificates of all rows, including dropped ones.
        details: Details of the reasons of dropped rollouts.
        skipped_forks: Number of calls chosen to be forked that cannot be replayed.
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
    sampled_tokens: int = 0
    certificates: CertificateSummary = field(default_factory=CertificateSummary)
    details: Counter[str] = field(default_factory=Counter[str])
    skipped_forks: int = 0

    @property
    def samples(self) -> list[Sample]:
        """All rollouts to train on, forks included."""
        return [sample for group in self.groups for sample in group.members]

    @classmethod
    def of(
        cls,
        decisions: Sequence[Sequence[Decision]],
        config: GRPOConfig,
        forks: Mapping[int, Sequence[Decision]] | None = None,
        reward_range: RewardRange | None = None,
    ) -> Step:
        """Return the step for the decisions on each group's rollouts.

        Args:
            decisions: Decisions on the rollouts of each group.
            config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
            forks: Decisions on forks, by the position of their group.
            reward_range: Lowest and highest possible reward, if they are declared.
        """
        step = cls()
        for index, rollouts in enumerate(decisions):
            branches = (forks or {}).get(index, ())
            step.sampled_tokens += sum(one.tokens for one in (*rollouts, *branches))
            members = [decision for decision in rollouts if not decision.is_absent]
            if not members:
                continue
            fewest = min(config.min_group_size or config.group_size, len(members))
            samples = [decision.sample for decision in members if decision.sample is not None]
            for decision in (*members, *branches):
                step.certificates += decision.certificates
                if decision.sample is None and not decision.is_absent:
                    step.dropped[decision.reason] += 1
                    step.details.update(filter(None, [decision.detail]))
                    step.dropped_rows += decision.rows
            usable = _usable(samples, branches, step.dropped)
            group = Group(index, samples, len(members) - len(samples), usable)
            group.count_failures(RewardScale(reward_range))
            step.rewards += [sample.reward for sample in group.samples]
            unfit = ""
            if len(samples) < fewest:
                unfit = Reason.SMALL_GROUP
            elif not group.teaches(config):
                step.uniform += 1
                if config.resample:
                    unfit = Reason.UNIFORM
            if unfit:
                step.dropped_groups += 1
                step.dropped[unfit] += len(group.members)
                step.dropped_rows += sum(len(sample.rows) for sample in group.members)
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
    learners: Mapping[str, Learner],
    versions: Collection[str],
) -> dict[str, Decision]:
    """Decide for each policy whether a rollout can be trained on.

    A policy is trained on its own calls. Calls to models that are not in training do not matter.

    Args:
        outcome: The rollout's outcome.
        adapter: Makes rows of its spans, unless the outcome has them.
        learners: The policies by name. Their options say how to treat failed rollouts and truncated
            answers.
        versions: Versions of the weights that may have sampled it.

    Returns:
        The decisions by the policy's name.
    """
    rows, calls, used = _rows(outcome, adapter)
    # A row may be made of spans of the proxy or of the agent's own client.
    models = {span.span_id: span.attributes.get(_MODEL) for span in outcome.spans}
    own = {
        name: (
            [row for row in rows if _model_of(row, models) in (None, learner.model)],
            [call for call in calls if models[call.span_id] in (None, learner.model)],
        )
        for name, learner in learners.items()
    }
    flaws = {
        name: _flaw(*own[name], used, learner.config, versions)
        for name, learner in learners.items()
    }
    if Reason.BROKEN_CALL in flaws.values():  # the other policies' rewards suffer from it too
        flaws = dict.fromkeys(flaws, Reason.BROKEN_CALL)
    elif any(own_calls for _, own_calls in own.values()):
        flaws |= {name: Reason.NOT_CALLED for name, (_, calls) in own.items() if not calls}
    return {
        name: replace(
            _decide(outcome, *own[name], learner.config, flaws[name]),
            certificates=CertificateSummary.of(own[name][0]),
            tokens=sum(sum(row.mask) for row in own[name][0]),
        )
        for name, learner in learners.items()
    }


def _usable(
    samples: Sequence[Sample], forks: Sequence[Decision], dropped: Counter[str]
) -> list[Sample]:
    """Return the usable forks of usable rollouts; count those that share no call to compare."""
    own_calls = {sample.rollout_id: len(sample.calls) for sample in samples}
    usable: list[Sample] = []
    for decision in forks:
        fork = decision.sample
        if fork is None or fork.parent not in own_calls:
            continue
        # Of several policies, one may have no call in the parent after those that are repeated.
        if fork.repeated < own_calls[fork.parent]:
            usable.append(fork)
        else:
            dropped[Reason.PAST_PARENT] += 1
    return usable


def _model_of(row: TrajectoryRow, requested: Mapping[str, Any]) -> str | None:
    """Return the name by which a row's calls asked for their model; None if it is unknown."""
    name = requested.get(row.span_ids[0])
    return name or next(iter(row.certificate.models), None)


def _decide(
    outcome: RolloutOutcome,
    rows: Sequence[TrajectoryRow],
    calls: Sequence[Span],
    config: GRPOConfig,
    flaw: str,
) -> Decision:
    status = outcome.rollout.status
    if outcome.infrastructure is not None:
        return Decision(None, Reason.INFRASTRUCTURE, len(rows))
    reward = reward_of(outcome, config.reward)
    reason = "" if status == "succeeded" else f"rollout {status}"
    if flaw == Reason.NOT_CALLED and (not reason or config.on_failure == "penalise"):
        return Decision(None, flaw, failed=False)
    if not reason and reward is None:
        reason = Reason.NO_REWARD + (f" {config.reward!r}" if config.reward else "")
    if not reason and reward is not None and not math.isfinite(reward):
        reason = Reason.BAD_REWARD
    if flaw or reason:
        usable = reason and not flaw and config.on_failure == "penalise"
        penalised = _penalised(outcome, config.failure_reward, rows, calls, config)
        return Decision(
            penalised if usable else None,
            reason or flaw,
            len(rows),
            failed=(reason or flaw) not in (Reason.OTHER_SAMPLING, Reason.NO_LOGPROBS),
            detail=_other_sampling(calls, config) if flaw == Reason.OTHER_SAMPLING else "",
        )
    assert reward is not None
    if any("length" in _finish_reasons(call) for call in calls):
        if config.on_overlong == "drop":
            return Decision(None, Reason.CUT_OFF, len(rows), failed=False)
        if config.on_overlong == "penalise":
            penalised = _penalised(outcome, config.overlong_reward, rows, calls, config)
            return Decision(penalised, rows=len(rows))
    return Decision(_sample(outcome, float(reward), rows, calls, config), rows=len(rows))


def _penalised(
    outcome: RolloutOutcome,
    penalty: float | None,
    rows: Sequence[TrajectoryRow],
    calls: Sequence[Span],
    config: GRPOConfig,
) -> Sample:
    """Return a sample that counts the penalty, or as a failure, for every agent in it.

    Numbers that the rollout emitted before would reinforce what it is penalised for.
    """
    reward = FAILURE if penalty is None else penalty
    return replace(_sample(outcome, reward, rows, calls, config), rewards={})


def _sample(
    outcome: RolloutOutcome,
    reward: float,
    rows: Sequence[TrajectoryRow],
    calls: Sequence[Span],
    config: GRPOConfig,
) -> Sample:
    rollout = outcome.rollout
    places = {span.span_id: span.sequence_id for span in outcome.spans}
    repeated = sum(
        semconv.REPLAYED_CALL in call.attributes and bool(call.attributes.get(_RESPONSE_IDS))
        for call in calls
    )
    return Sample(
        rollout.rollout_id,
        reward,
        rows,
        calls=sorted(
            ((i, number) for i, row in enumerate(rows) for number in range(len(row.responses))),
            key=lambda place: places.get(rows[place[0]].span_ids[place[1]], 0),
        ),
        rewards=named_rewards(outcome.spans) if config.credit.type == "agents" else {},
        parent=rollout.config.replay.rollout_id if rollout.config.replay else None,
        repeated=repeated,
    )


def reward_of(outcome: RolloutOutcome, name: str | None) -> float | None:
    """Return a rollout's reward, or one of its numbers by name; None if it has none."""
    return outcome.reward if name is None else named_rewards(outcome.spans).get(name)


def _rows(
    outcome: RolloutOutcome, adapter: TraceToTrajectory
) -> tuple[list[TrajectoryRow], list[Span], set[str]]:
    """Return a rollout's rows, the proxy's spans, and the ids of those that are in rows."""
    if not outcome.spans:
        return [], [], set()
    rows: list[TrajectoryRow] | None = outcome.adapted
    if rows is None:
        rows = adapter.adapt(outcome.spans)
    calls = [span for span in outcome.spans if span.name == semconv.SPAN_MODEL_CALL]
    calls.sort(key=lambda span: span.sequence_id)
    used = _used(rows, calls, outcome.spans)
    if not adapter.keep_auxiliary and any(call.span_id not in used for call in calls):
        # How a title was sampled, or that it failed, says nothing about the rollout.
        beside = auxiliary_calls([(call, ModelCall(call.attributes)) for call in calls])
        calls = [call for call in calls if call.span_id in used or call.span_id not in beside]
    return rows, calls, used


def _used(rows: Sequence[TrajectoryRow], calls: Sequence[Span], spans: Sequence[Span]) -> set[str]:
    """Return the ids of the calls whose answers are in rows.

    A row names one span of a call: the proxy's, or with a tracer that of the agent's own client.
    That is above the proxy's, once for each try of the client, or has the same response.
    """
    named = {span_id for row in rows for span_id in row.span_ids}
    used = {call.span_id for call in calls if call.span_id in named}
    by_id = {span.span_id: span for span in spans}
    if used == named:
        return used
    above = {call.span_id: _above(call, by_id) for call in calls}
    answers = {call.span_id: ModelCall(call.attributes).response_id for call in calls}
    for name in named - used:
        below = [call for call in calls if name in above[call.span_id]]
        answer = ModelCall(by_id[name].attributes).response_id if name in by_id else None
        same = [c for c in below or calls if answer is not None and answers[c.span_id] == answer]
        used |= {call.span_id for call in same or below[-1:]}
    return used


def _above(span: Span, by_id: Mapping[str, Span]) -> set[str]:
    """Return the ids of the spans above a span."""
    found: set[str] = set()
    parent = span.parent_id
    while parent is not None and parent not in found:
        found.add(parent)
        parent = by_id[parent].parent_id if parent in by_id else None
    return found


def _flaw(
    rows: Sequence[TrajectoryRow],
    calls: Sequence[Span],
    used: Collection[str],
    config: GRPOConfig,
    versions: Collection[str],
) -> str:
    """Return what is wrong with a policy's tokens of a rollout; empty if nothing is."""
    broken = {call.span_id for call in calls if failed_at_server(call)}
    if lost_calls(calls):
        return Reason.BROKEN_CALL
    if broken.intersection(used):
        return Reason.BROKEN_CALL  # tokens of a truncated stream are in a row
    if any(len(_finish_reasons(call)) > 1 and call.span_id not in used for call in calls):
        return Reason.SEVERAL_CHOICES
    if any(_END_VERSION in call.attributes for call in calls if call.span_id in used):
        return Reason.OTHER_WEIGHTS  # loaded while the call ran: which token has which is unknown
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
    if _other_sampling(calls, config):
        return Reason.OTHER_SAMPLING
    return ""


def lost_calls(calls: Sequence[Span]) -> list[Span]:
    """Return the calls that failed through no fault of the agent, and were not repeated."""
    return [call for call in calls if failed_at_server(call) and not _was_repeated(call, calls)]


def _was_repeated(call: Span, calls: Sequence[Span]) -> bool:
    """Return whether a later call with the same messages succeeded."""
    messages = call.attributes.get("gen_ai.input.messages")
    return any(
        later.sequence_id > call.sequence_id
        and later.status.status_code != "ERROR"
        and later.attributes.get("gen_ai.input.messages") == messages
        for later in calls
    )


def _other_sampling(calls: Sequence[Span], config: GRPOConfig) -> str:
    """Return how calls were sampled in another way than is trained; empty if none was."""
    found: list[str] = []
    for call in calls:
        found += other_sampling(call.attributes, temperature=config.temperature)
        asked = request_parameters(call.attributes)
        found += [f"{name}={asked[name]}" for name in altered_sampling(call.attributes)]
    return ", ".join(dict.fromkeys(found))


def _finish_reasons(call: Span) -> Sequence[Any]:
    value: Any = call.attributes.get("gen_ai.response.finish_reasons")
    return value if isinstance(value, (list, tuple)) else ()
