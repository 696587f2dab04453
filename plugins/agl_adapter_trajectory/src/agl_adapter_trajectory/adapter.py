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
from dataclasses import dataclass
from typing import Any

from agl_adapter_trajectory.breaks import BreakCause, History, why_broken
from agl_adapter_trajectory.call_nodes import add_call
from agl_adapter_trajectory.certificates import TrajectoryReport
from agl_adapter_trajectory.config import TrajectoryConfig
from agl_adapter_trajectory.graph import MessageGraph
from agl_adapter_trajectory.rows import TrajectoryRow, read_logprobs
from agl_adapters import (
    CallRules,
    MatchedCall,
    ModelCall,
    PrefixIndex,
    TraceTree,
    altered_sampling,
    answers_of,
    auxiliary_calls,
    call_order,
    keep_used_choices,
    leave_out_auxiliary,
    match_rewards,
    sent_messages,
)
from agl_core import semconv
from agl_core.adapter import AdapterReport, Reason, Repair, TraceAdapter
from agl_core.plugins import configured_by
from agl_core.types import SpanLike


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
    calls of one agent to one model. Left out and counted are calls without token ids or with fewer
    than were sampled, answers that broke off, choices that the agent did not go on with, and
    auxiliary calls, such as those for a title. Of several rewards after the same call, the last
    counts.
    """

    @configured_by(TrajectoryConfig)
    def __init__(self, config: TrajectoryConfig) -> None:
        self.rules = CallRules(
            config.llm_call_match, config.agent_match, config.exclude_llm_call_in_reward
        )
        self.reward_match = config.reward_match
        self.repair_hierarchy = config.repair_hierarchy
        self.keep_auxiliary = config.keep_auxiliary

    def adapt_with_report(
        self, source: Sequence[SpanLike], /
    ) -> tuple[list[TrajectoryRow], TrajectoryReport]:
        """Convert the spans of one attempt.

        Raises:
            InvalidArgumentError: There are no spans, or they have no root.
        """
        report = TrajectoryReport()
        tree, calls = self._calls(source, report)
        if not self.keep_auxiliary:
            calls = leave_out_auxiliary(calls, report)
        kept, tokens, rewards = self._usable(tree, calls, report)
        rows = _Rows(report)
        for call in calls:
            key = call.node.id
            rows.add(kept.get(key, call), *tokens.get(key, ([], [])), rewards.get(key))
            for problem in call.call.problems:
                report.repair("call", problem)
        report.produce("rows", len(rows.rows))
        report.certify(rows.rows)
        return rows.rows, report

    def graph(self, source: Sequence[SpanLike], /) -> MessageGraph:
        """Return the messages of one attempt as a graph.

        It has every call, also those that :meth:`adapt` leaves out; ``trained`` tells them apart.

        Raises:
            InvalidArgumentError: There are no spans, or they have no root.
        """
        report = AdapterReport()
        tree, calls = self._calls(source, report)
        auxiliary = auxiliary_calls([(one.node.span, one.call) for one in calls])
        beside = {} if self.keep_auxiliary else auxiliary
        serving = [call for call in calls if call.node.id not in beside]
        kept, tokens, rewards = self._usable(tree, serving, report)
        made = MessageGraph()
        for call in calls:
            key = call.node.id
            used = tokens[key][1] if key in kept and all(tokens[key]) else None
            add_call(made, call, used, rewards.get(key), auxiliary.get(key))
        made.find_links()
        return made

    def _calls(
        self, source: Sequence[SpanLike], report: AdapterReport
    ) -> tuple[TraceTree, list[MatchedCall]]:
        """Return the tree of an attempt's spans, and its calls in the order they were made."""
        tree = TraceTree.read(source, report, repair_hierarchy=self.repair_hierarchy)
        calls = tree.find_llm_calls(self.rules, report)
        calls.sort(key=lambda call: call_order(call.node.span))
        return tree, calls

    def _usable(
        self, tree: TraceTree, calls: Sequence[MatchedCall], report: AdapterReport
    ) -> tuple[dict[str, MatchedCall], dict[str, tuple[list[int], list[int]]], dict[str, float]]:
        """Return the calls with the choice used, their tokens, and their rewards, by span id."""
        kept = {call.node.id: call for call in keep_used_choices(calls, report)}
        tokens = {key: (one.call.prompt_ids, one.call.response_ids) for key, one in kept.items()}
        usable = [call.node for key, call in kept.items() if all(tokens[key])]
        report.leave_out("call", Reason.NO_TOKEN_IDS, len(kept) - len(usable))
        # Returns by turn add up the rewards of a row, so a call must not get a repeated one.
        rewards = match_rewards(tree, usable, self.reward_match, report, replace=True)
        return kept, tokens, rewards


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
        target = family.continued_by(packed) or self._start(matched, family, packed)
        _extend(target, matched, prompt, response, reward, self._report)
        family.hold(target, packed + array("q", response).tobytes())
        target.history.last_call = call

    def _start(self, matched: MatchedCall, family: _Family, packed: bytes) -> _Open:
        row = TrajectoryRow(agent=matched.agent)
        certificate = row.certificate
        if family.members:
            nearest = family.nearest_to(packed)
            # Messages are parsed here only: most calls continue a row, and their tokens suffice.
            before = _sent_and_answered(nearest.history.last_call)
            sent = sent_messages(matched.call)
            certificate.break_cause, certificate.broken_at = why_broken(
                nearest.history, before, packed, sent
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
    certificate.continued += _said(matched, semconv.PROMPT_HISTORY) == "continued"
    for name in altered_sampling(call.attributes):
        if name not in certificate.altered_sampling:
            certificate.altered_sampling.append(name)
    reason = _said(matched, semconv.PROMPT_HISTORY_REASON)
    for value, seen in (
        (None if reason is None else str(reason), certificate.fallbacks),
        (call.model, certificate.models),
        (call.model_version, certificate.model_versions),
    ):
        if value is not None and value not in seen:
            seen.append(value)


def _said(matched: MatchedCall, key: str) -> Any:
    """Return an attribute of the first of a call's spans that has it; None if none has."""
    values = (reading.attributes.get(key) for reading in matched.readings())
    return next((value for value in values if value is not None), None)


def _logprobs(call: ModelCall, length: int, report: AdapterReport) -> list[float] | None:
    """Return one number per response token; None if they are missing or their number differs."""
    entries = call.logprobs
    if entries is None:
        return None
    numbers = read_logprobs(entries, length)
    if numbers is None:
        report.repair("call", Repair.BAD_LOGPROBS)
    return numbers


def _sent_and_answered(call: ModelCall | None) -> list[dict[str, Any]] | None:
    """Return the messages of a call with its answer; None if they were not captured."""
    if call is None:
        return None
    sent, answers = sent_messages(call), answers_of(call)
    return None if sent is None or answers is None else sent + answers[:1]
