"""Trajectories: joins calls that continue each other token by token into one row.

The second prompt of an agent usually consists of its first prompt, the model's answer and new text.
Training call by call processes the shared tokens once per call; training on one row processes them
once, and each token is the one that the model saw or sampled::

    call 1   prompt [1 2]              response [3 4]
    call 2   prompt [1 2 3 4 5]        response [6]
    row      tokens [1 2 3 4 5 6]      mask [0 0 1 1 0 1]

A call joins a row only if its prompt begins with *all* of the row's tokens. Otherwise it starts a
new row, in which all tokens before its own response are context (mask 0), and whose certificate
names the cause of the break.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agl_core.adapter._base import TraceAdapter, as_spans
from agl_core.adapter._breaks import BreakCause, History, why_broken
from agl_core.adapter._call import ModelCall
from agl_core.adapter._certificates import CertificateSummary
from agl_core.adapter._chat import to_messages
from agl_core.adapter._config import TrajectoryConfig
from agl_core.adapter._prefix_index import PrefixIndex
from agl_core.adapter._report import AdapterReport, Reason, Repair
from agl_core.adapter._rewards import match_rewards
from agl_core.adapter._tree import CallRules, MatchedCall, TraceTree
from agl_core.adapter._vocabulary import count_unread
from agl_core.plugins import configured_by
from agl_core.types import Span, SpanLike


@dataclass(slots=True)
class Certificate:
    """Facts about a row's tokens, from which an algorithm decides what to train on.

    Attributes:
        ids_present: Every call that the agent made between the row's calls has token ids. The
            answer of a call without them is in the row as context.
        logprobs_present: Every model token has the log-probability it was sampled with.
        models: Names of the models that answered, without repeats.
        model_versions: Versions of the weights that answered, without repeats, in order; several
            mean that several policies sampled the row. Empty if the proxy did not record them.
        break_cause: Why the row does not continue an earlier one; None for the first row.
        broken_from: Index of the row with the longest common prefix; None for the agent's first.
        broken_at: Length of the common prefix with that row, in tokens.
    """

    ids_present: bool = True
    logprobs_present: bool = True
    models: list[str] = field(default_factory=list[str])
    model_versions: list[str] = field(default_factory=list[str])
    break_cause: BreakCause | None = None
    broken_from: int | None = None
    broken_at: int = 0


@dataclass(slots=True)
class TrajectoryRow:
    """One sequence of T tokens to train on; lists have length T unless stated otherwise.

    Attributes:
        agent: Name of the agent; ``"*"`` outside named ones.
        token_ids: int, the tokens that the model saw and sampled, without padding.
        mask: int, 1 where the token was sampled in one of this row's calls, else 0. A token that
            was sampled in one row has mask 0 in every other row that repeats it.
        logprobs: float, the natural log-probability with which the token was sampled, where
            ``mask`` is 1 and it was captured, else 0.0.
        prompt_length: Number of tokens before the first response.
        responses: Positions ``(start, end)`` of each call's response, ascending; ``end`` exclusive.
        rewards: Reward of each call, None where it has none; as long as ``responses``.
        span_ids: Span of each call; as long as ``responses``.
        certificate: Facts about the row's tokens.
    """

    agent: str
    token_ids: list[int] = field(default_factory=list[int])
    mask: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    prompt_length: int = 0
    responses: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    rewards: list[float | None] = field(default_factory=list[float | None])
    span_ids: list[str] = field(default_factory=list[str])
    certificate: Certificate = field(default_factory=Certificate)

    @property
    def reward(self) -> float | None:
        """Reward of the last rewarded call; None if no call has a reward."""
        return next((reward for reward in reversed(self.rewards) if reward is not None), None)


@dataclass(slots=True)
class _Open:
    """A row that may still grow."""

    row: TrajectoryRow
    index: int
    history: History


class _Family:
    """The rows of one agent and one model, by index; prefixes are searched within a family."""

    def __init__(self) -> None:
        self.members: dict[int, _Open] = {}
        self._prefixes = PrefixIndex()

    def continued_by(self, prompt: bytes) -> _Open | None:
        """Return the longest row that is a prefix of the prompt, the latest of equal ones."""
        index = self._prefixes.longest_in(prompt)
        return None if index is None else self.members[index]

    def nearest_to(self, prompt: bytes) -> _Open:
        """Return the latest row with the longest common prefix with the prompt."""
        return self.members[self._prefixes.nearest_to(prompt)]

    def hold(self, one: _Open, packed: bytes) -> None:
        """Set the tokens of a row, adding the row if it is new."""
        if one.index in self.members:
            self._prefixes.remove(one.index, one.history.packed)
        self.members[one.index] = one
        one.history.packed = packed
        self._prefixes.add(one.index, packed)


class TraceToTrajectory(TraceAdapter[list[TrajectoryRow]]):
    """Converts the spans of one attempt to rows of tokens, in order of their first calls.

    Calls are read in any dialect of a tracer or proxy, in order of their sequence ids. A row holds
    calls of one agent to one model. Calls without token ids are left out and counted.
    """

    @configured_by(TrajectoryConfig)
    def __init__(self, config: TrajectoryConfig) -> None:
        self.rules = CallRules(
            config.llm_call_match, config.agent_match, config.exclude_llm_call_in_reward
        )
        self.reward_match = config.reward_match
        self.repair_hierarchy = config.repair_hierarchy

    def adapt_with_report(
        self, source: Sequence[SpanLike], /
    ) -> tuple[list[TrajectoryRow], AdapterReport]:
        """Convert the spans of one attempt.

        Raises:
            InvalidArgumentError: There are no spans, or they have no root.
        """
        spans = as_spans(source)
        report = AdapterReport(spans=len(spans))
        count_unread(spans, report)
        tree = TraceTree.from_spans(spans, report)
        if self.repair_hierarchy:
            tree.repair_hierarchy(report)
        calls = tree.find_llm_calls(self.rules, report)
        calls.sort(key=lambda call: _order(call.node.span))
        tokens = [(call.call.prompt_ids, call.call.response_ids) for call in calls]
        usable = [
            call.node for call, (sent, got) in zip(calls, tokens, strict=True) if sent and got
        ]
        report.leave_out("call", Reason.NO_TOKEN_IDS, len(calls) - len(usable))
        rewards = match_rewards(tree, usable, self.reward_match, report)
        rows = _Rows(report)
        for call, (prompt, response) in zip(calls, tokens, strict=True):
            rows.add(call, prompt, response, rewards.get(call.node.id))
            for problem in call.call.problems:
                report.repair("call", problem)
        report.produce("rows", len(rows.rows))
        report.certificates = CertificateSummary.of(rows.rows)
        return rows.rows, report


class _Rows:
    """The rows built so far."""

    def __init__(self, report: AdapterReport) -> None:
        self.rows: list[TrajectoryRow] = []
        self._report = report
        self._families: dict[tuple[str, str | None], _Family] = {}

    def add(
        self, matched: MatchedCall, prompt: list[int], response: list[int], reward: float | None
    ) -> None:
        """Append a call to the row that it continues, or start a new row."""
        call = matched.call
        family = self._families.setdefault((matched.agent, call.model), _Family())
        if not prompt or not response:
            for other in family.members.values():
                other.history.gap = True
            return
        packed = array("q", prompt).tobytes()
        sent, answered = _messages(call)
        target = family.continued_by(packed) or self._start(matched, family, packed, sent)
        _extend(target, matched, prompt, response, reward, self._report)
        family.hold(target, packed + array("q", response).tobytes())
        if sent is not None and answered is not None:
            target.history.messages = sent + answered
        else:
            target.history.messages = None

    def _start(
        self,
        matched: MatchedCall,
        family: _Family,
        packed: bytes,
        messages: list[dict[str, Any]] | None,
    ) -> _Open:
        row = TrajectoryRow(agent=matched.agent)
        certificate = row.certificate
        if family.members:
            nearest = family.nearest_to(packed)
            certificate.break_cause, certificate.broken_at = why_broken(
                nearest.history, packed, messages
            )
            certificate.broken_from = nearest.index
        elif any(
            agent == matched.agent and rows.members for (agent, _), rows in self._families.items()
        ):
            certificate.break_cause = BreakCause.OTHER_MODEL
        elif self.rows:
            certificate.break_cause = BreakCause.OTHER_AGENT
        self.rows.append(row)
        return _Open(row, len(self.rows) - 1, History())


def _extend(
    target: _Open,
    matched: MatchedCall,
    prompt: list[int],
    response: list[int],
    reward: float | None,
    report: AdapterReport,
) -> None:
    row, call = target.row, matched.call
    certificate = row.certificate
    inserted = prompt[len(row.token_ids) :]
    start = len(prompt)
    if not row.responses:
        row.prompt_length = start
    elif target.history.gap:
        certificate.ids_present = False
    target.history.gap = False
    logprobs = _logprobs(call, len(response), report)
    row.token_ids += inserted
    row.token_ids += response
    row.mask += [0] * len(inserted) + [1] * len(response)
    row.logprobs += [0.0] * len(inserted) + (logprobs or [0.0] * len(response))
    row.responses.append((start, start + len(response)))
    target.history.responses = row.responses
    row.rewards.append(reward)
    row.span_ids.append(matched.node.id)
    certificate.logprobs_present = certificate.logprobs_present and logprobs is not None
    for value, seen in (
        (call.model, certificate.models),
        (call.model_version, certificate.model_versions),
    ):
        if value is not None and value not in seen:
            seen.append(value)


def _logprobs(call: ModelCall, length: int, report: AdapterReport) -> list[float] | None:
    """Return one number per response token; None if they are missing or their number differs."""
    entries = call.logprobs
    if entries is None:
        return None
    numbers = read_logprobs(entries, length)
    if numbers is None:
        report.repair("call", Repair.BAD_LOGPROBS)
    return numbers


def read_logprobs(entries: Sequence[Any] | None, length: int) -> list[float] | None:
    """Return the log-probability of each sampled token; None if one is missing.

    Args:
        entries: Numbers, or OpenAI's entries with a ``logprob``; None if they were not captured.
        length: How many tokens were sampled.
    """
    if entries is None:
        return None
    numbers = [
        cast("dict[str, Any]", entry).get("logprob") if isinstance(entry, dict) else entry
        for entry in entries
    ]
    if len(numbers) != length or not all(isinstance(number, (int, float)) for number in numbers):
        return None
    return [float(cast("float", number)) for number in numbers]


def _messages(
    call: ModelCall,
) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]] | None]:
    """Return the messages sent and answered, normalized so that equal conversations are equal."""
    sides: list[list[dict[str, Any]] | None] = []
    for side in ("prompt", "completion"):
        raw, row = call.structure(side)
        if row is None or not isinstance(raw, list):
            sides.append(None)
            continue
        messages = cast("list[Any]", raw)
        if side == "completion":
            messages = messages[:1]  # the captured response ids belong to the first choice
        shape = row.prompt_shape if side == "prompt" else row.completion_shape
        sides.append(
            [
                {
                    "role": message.get("role"),
                    "content": message.get("content") or "",
                    "tool_calls": message.get("tool_calls") or [],
                }
                for message in to_messages(messages, shape)
            ]
        )
    return sides[0], sides[1]


def _order(span: Span) -> tuple[int, bool, float]:
    start = span.start_time
    return (span.sequence_id, start is None, 0.0 if start is None else start)
