"""Builds and searches the tree of an attempt's spans.

No function here recurses: traces of agents that call themselves are thousands of levels deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from agl_adapters.auxiliary import auxiliary_calls
from agl_adapters.clocks import align_clocks, is_remote
from agl_adapters.foreign_spans import with_conventions
from agl_adapters.model_call import ModelCall
from agl_adapters.otel_spans import as_spans
from agl_adapters.recorded_calls import (
    SeenCalls,
    call_order,
    chosen_choice,
    is_broken,
    is_same_inside,
    were_sampled_apart,
)
from agl_adapters.repair import enclosing_nodes
from agl_adapters.vocabulary import agent_name, count_unread, is_model_call
from agl_core import semconv
from agl_core.adapter import AdapterReport, Reason, Repair, read_reward
from agl_core.errors import InvalidArgumentError
from agl_core.types import Span, SpanLike

VIRTUAL_ROOT = "virtual-root"
"""Id and name of the node above several roots."""
ANY_AGENT = "*"
"""Agent of a call outside every named agent."""


@dataclass(frozen=True, slots=True)
class CallRules:
    """Rules that select the spans that count as calls to train on.

    Attributes:
        llm_call_match: Regular expression searched in the span's name; None: any span that
            a dialect knows as a model call, whatever its name.
        agent_match: Regular expression searched in the names of agents; only calls inside a
            matching agent count. None: all calls count.
        exclude_in_reward: Leave out calls below a reward span (a judge's).
        exclude_unusable: Leave out calls that failed, and calls that a recording answered.
    """

    llm_call_match: str | None = None
    agent_match: str | None = None
    exclude_in_reward: bool = True
    exclude_unusable: bool = True


_EVERY_CALL: Final = CallRules(exclude_in_reward=False, exclude_unusable=False)


@dataclass(frozen=True, slots=True)
class MatchedCall:
    """A model call, and the agent that made it (:data:`ANY_AGENT` outside named ones).

    Attributes:
        node: The span that stands for the call.
        agent: Name of the agent.
        call: What was recorded of the call, by the span that is the most complete for training.
        again: The other spans of the call, such as that of a proxy.
    """

    node: TraceTree
    agent: str
    call: ModelCall
    again: list[Span] = field(default_factory=list[Span])

    @property
    def spans(self) -> list[Span]:
        """All spans of the call, its own first."""
        return [self.node.span, *self.again]

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Tokens of the prompt and of the response, from the first span that says so."""
        taken = given = None
        for reading in self.readings():
            in_prompt, in_response = reading.tokens
            taken, given = _either(taken, in_prompt), _either(given, in_response)
            if taken is not None and given is not None:
                break
        return taken, given

    def readings(self) -> Iterator[ModelCall]:
        """Yield what the spans of the call say about it, the most complete one first."""
        yield self.call
        for span in self.spans:
            if span.attributes is not self.call.attributes:
                yield ModelCall(span.attributes)


def _either(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


class TraceTree:
    """A span with its children, in the order of the input.

    Attributes:
        id: The span's id; for a virtual node, the id of the missing span.
        span: The recorded span, or a virtual one in place of a missing span.
        children: Child nodes.
        moved: Whether its times put it below its parent, see :meth:`repair_hierarchy`.
    """

    __slots__ = ("_reward", "_reward_known", "children", "id", "moved", "span")

    def __init__(self, id: str, span: Span, children: Iterable[TraceTree] = ()) -> None:
        self.id = id
        self.span = span
        self.children = list(children)
        self.moved = False
        self._reward: float | None = None
        self._reward_known = False

    @classmethod
    def from_spans(cls, spans: Sequence[Span], report: AdapterReport | None = None) -> TraceTree:
        """Build the tree of a trace, in linear time.

        A span without a parent is a root. Spans whose parent is missing become children of a
        virtual node with the parent's id, which covers their times. Several roots become children
        of one virtual root. Of several spans with one id the first is kept. If there is a root, a
        cycle of parents is cut at its first span in the input, which becomes a root. Spans of
        another machine get the times of the clock of the span that called them.

        Args:
            spans: The spans of one attempt.
            report: Where to count what was left out or repaired.

        Raises:
            InvalidArgumentError: There are no spans, or no root: every chain of parents is a cycle.
        """
        report = AdapterReport() if report is None else report
        nodes: dict[str, TraceTree] = {}
        for span in spans:
            if span.span_id in nodes:
                report.leave_out("span", Reason.DUPLICATE_SPAN)
            else:
                nodes[span.span_id] = cls(span.span_id, span)
        roots: dict[str, TraceTree | None] = {}  # None: a missing parent
        orphans: dict[str, list[TraceTree]] = {}
        for node in nodes.values():
            parent_id = node.span.parent_id
            if not parent_id:
                roots[node.id] = node
            elif parent_id in nodes:
                nodes[parent_id].children.append(node)
            else:
                roots[parent_id] = None
                orphans.setdefault(parent_id, []).append(node)
        if not roots:
            raise InvalidArgumentError(
                "a trace needs a root span, but the parents of all spans form cycles"
                if nodes
                else "a trace needs at least one span"
            )
        tops = [node or _stand_in(key, orphans[key]) for key, node in roots.items()]
        report.repair("span", Repair.MISSING_PARENT, len(orphans))
        tops += _cut_cycles(nodes, tops, report)
        top = tops[0] if len(tops) == 1 else _virtual_root(tops)
        if any(is_remote(node.span) for node in nodes.values()):
            align_clocks(top)
        return top

    @classmethod
    def of_any(cls, spans: Sequence[Span]) -> TraceTree:
        """Build the tree of spans that may have no root; then the first span becomes the root.

        Calls of foreign tools get the attributes of the GenAI conventions.

        Args:
            spans: The spans of one attempt, at least one.
        """
        spans = [with_conventions(span) for span in spans]
        try:
            return cls.from_spans(spans)
        except InvalidArgumentError:  # the parents of all spans form cycles
            first = spans[0].model_copy(update={"parent_id": None})
            return cls.from_spans([first, *spans[1:]])

    @classmethod
    def read(
        cls, source: Sequence[SpanLike], report: AdapterReport, *, repair_hierarchy: bool
    ) -> TraceTree:
        """Build the tree of an attempt's spans, ours or OpenTelemetry's, and count them.

        Raises:
            InvalidArgumentError: There are no spans, or they have no root.
        """
        spans = as_spans(source)
        report.spans += len(spans)
        count_unread(spans, report)
        tree = cls.from_spans(spans, report)
        if repair_hierarchy:
            tree.repair_hierarchy(report)
        return tree

    # -- looking around --------------------------------------------------------------------------

    def traverse(self) -> Iterator[TraceTree]:
        """Yield the node and all nodes below it: parents first, children in order."""
        stack: list[TraceTree] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def find_id(self, id: str) -> TraceTree | None:
        """Return the node of this id, or None."""
        return next((node for node in self.traverse() if node.id == id), None)

    @property
    def start_time(self) -> float | None:
        """Seconds since the epoch; None if the time is missing or NaN."""
        time = self.span.start_time
        return time if time is not None and time == time else None  # NaN is not equal to itself

    @property
    def end_time(self) -> float | None:
        """Seconds since the epoch; None if the time is missing or NaN."""
        time = self.span.end_time
        return time if time is not None and time == time else None  # NaN is not equal to itself

    def agent_name(self) -> str | None:
        """Return the name of the agent whose run the span records; None for any other span."""
        return agent_name(self.span.name, self.span.attributes)

    def reward(self) -> float | None:
        """Return the primary reward of the span, or None if it carries none.

        A reward that is not a finite number is returned as NaN.
        """
        if not self._reward_known:
            self._reward, self._reward_known = read_reward(self.span), True
        return self._reward

    # -- shaping ---------------------------------------------------------------------------------

    def repair_hierarchy(self, report: AdapterReport | None = None) -> None:
        """Move stray children of the top below the span that encloses them in time.

        If two systems trace one framework, model calls end up directly under the root instead of
        under their agent. *Top* is the first node, from the root down, that does not have exactly
        one child. Each child of it moves below the shortest longer span in its siblings' subtrees
        that encloses it, while more than one child remains. Of equally long spans the first in
        tree order is taken. Children of a node that received some are sorted by start. A span
        with a missing time neither moves nor receives children, and no span moves below itself.
        Takes O(n log n).

        Args:
            report: Where to count the moves.
        """
        top = self
        while len(top.children) == 1:
            top = top.children[0]
        if not top.children:
            return
        # The child below which each child is now, as a union-find forest: a move must not put a
        # span below itself.
        group = list(range(len(top.children)))

        def find(index: int) -> int:
            while group[index] != index:
                group[index] = group[group[index]]
                index = group[index]
            return index

        remaining = len(top.children)
        moved: set[int] = set()
        received: dict[str, TraceTree] = {}
        for index, target in enumerate(enclosing_nodes(top.children)):
            if remaining == 1:
                break
            if target is None or find(target.group) == index:
                continue
            group[index] = target.group
            target.node.children.append(top.children[index])
            top.children[index].moved = True
            received[target.node.id] = target.node
            moved.add(index)
            remaining -= 1
        top.children = [child for i, child in enumerate(top.children) if i not in moved]
        for node in received.values():
            node.children.sort(key=by_start)
        if report is not None:
            report.repair("span", Repair.REPARENTED, len(moved))

    # -- finding calls ---------------------------------------------------------------------------

    def find_llm_calls(
        self, rules: CallRules, report: AdapterReport | None = None
    ) -> list[MatchedCall]:
        """Return the calls that ``rules`` select, parents first.

        The agent of a call is the nearest named agent above it. An agent that does not match hides
        the spans below it, down to the next agent that matches. A call nested in a call is the same
        call, recorded by a framework and by the client that it uses. The client has more data, so
        the inner one is kept, unless only the outer one has a response id. If both have one, their
        answers must be equal, since some frameworks make ids of their own. If only times say that
        it is nested, and token ids that it is another call, both are kept. Of several spans of one
        call (:class:`~agl_adapters.recorded_calls.SeenCalls`) the first is kept, with the data of
        the most complete one (:attr:`ModelCall.completeness`). A call that failed is left out: what
        was recorded of its answer is not an answer. So is a call that a recording answered: its
        tokens were sampled in another attempt. :func:`distinct_calls` keeps both.

        Args:
            rules: Which spans count as calls.
            report: Where to count the model calls that are left out.
        """
        report = AdapterReport() if report is None else report
        is_call = re.compile(rules.llm_call_match).search if rules.llm_call_match else None
        is_agent = re.compile(rules.agent_match).search if rules.agent_match else None
        calls: list[MatchedCall] = []
        seen = SeenCalls()
        superseded: set[str] = set()
        label: str | None = None if is_agent else ANY_AGENT
        # Of a node also: whether only times say that it is below the nearest call around it.
        stack: list[tuple[TraceTree, str | None, bool, MatchedCall | None, bool]] = [
            (self, label, False, None, False)
        ]
        while stack:
            node, label, in_reward, outer, by_time = stack.pop()
            span = node.span
            known = is_model_call(span.attributes)
            named = known if is_call is None else is_call(span.name) is not None
            is_replayed = rules.exclude_unusable and semconv.REPLAYED_CALL in span.attributes
            if known and is_replayed:
                report.leave_out("call", Reason.REPLAYED)
                if outer is not None:
                    superseded.add(outer.node.id)
                    seen.remove(outer.node.span, outer.call)
            elif named:
                call = ModelCall(span.attributes)
                response_id = call.response_id
                twin = seen.find(span, call, outer and outer.node.span)
                apart = bool(outer and by_time and were_sampled_apart(outer.call, call))
                reason = (
                    Reason.OTHER_AGENT
                    if label is None
                    else Reason.IN_REWARD
                    if in_reward
                    else Reason.NESTED_CALL
                    if response_id is None
                    and outer
                    and outer.call.response_id is not None
                    and not apart
                    else Reason.DUPLICATE_RESPONSE
                    if twin is not None
                    else Reason.BROKEN
                    if rules.exclude_unusable and is_broken(span)
                    else None
                )
                if reason is not None:
                    report.leave_out("call", reason)
                    if reason is Reason.NESTED_CALL and outer is not None:
                        outer.again.append(span)
                    elif reason is Reason.DUPLICATE_RESPONSE and twin is not None:
                        first = calls[twin]
                        first.again.append(span)
                        if outer is not None and outer.call.response_id is None:
                            superseded.add(outer.node.id)
                            first.again.extend(outer.spans)
                        if call.completeness > first.call.completeness:
                            calls[twin] = MatchedCall(first.node, first.agent, call, first.again)
                elif label is not None:
                    found = MatchedCall(node, label, call)
                    if outer and not apart and is_same_inside(outer.call, call):
                        superseded.add(outer.node.id)
                        found.again.extend(outer.spans)
                    outer, by_time = found, False
                    calls.append(outer)
                    seen.add(span, call, len(calls) - 1)
            elif known:
                report.leave_out("call", Reason.NAME_MISMATCH)
            agent = node.agent_name()
            if agent is not None:
                label = agent if is_agent is None or is_agent(agent) else None
            in_reward = in_reward or (rules.exclude_in_reward and node.reward() is not None)
            stack.extend(
                (child, label, in_reward, outer, by_time or child.moved)
                for child in reversed(node.children)
            )
        report.leave_out("call", Reason.NESTED_CALL, len(superseded))
        return [found for found in calls if found.node.id not in superseded]


def keep_used_choices(calls: Sequence[MatchedCall], report: AdapterReport) -> list[MatchedCall]:
    """Return calls with the choice that the agent used as their only one.

    A call with several choices is left out if no later call goes on with one of them: its reward
    would be given to an answer that the agent may have discarded. So is a call of which some token
    ids are missing.

    Args:
        calls: Calls in any order, which the result keeps. The spans of a tree are often not in the
            order in which the calls were made.
        report: Where to count what is left out.
    """
    in_order = sorted(calls, key=lambda one: call_order(one.node.span))
    places = {found.node.id: place for place, found in enumerate(in_order)}
    kept: list[MatchedCall] = []
    for found in calls:
        call, number = found.call, found.call.choices
        if call.response_ids and not call.has_all_ids:
            report.leave_out("call", Reason.INCOMPLETE_IDS)
            continue
        if number == 1:
            kept.append(found)
            continue
        after = islice(in_order, places[found.node.id] + 1, None)
        used = chosen_choice(call, (later.call for later in after))
        if used is None:
            report.leave_out("call", Reason.SEVERAL_CHOICES)
            continue
        report.leave_out("choice", Reason.OTHER_CHOICE, number - 1)
        kept.append(MatchedCall(found.node, found.agent, call.of_choice(used), found.again))
    return kept


def leave_out_auxiliary(calls: Sequence[MatchedCall], report: AdapterReport) -> list[MatchedCall]:
    """Return calls without the auxiliary ones, which are counted with what they are for.

    Args:
        calls: Calls in any order.
        report: Where to count what is left out.
    """
    found = _auxiliary(calls)
    for purpose in found.values():
        report.leave_out("call", f"{Reason.AUXILIARY}: {purpose}")
    return [one for one in calls if one.node.id not in found] if found else list(calls)


def distinct_calls(tree: TraceTree) -> list[MatchedCall]:
    """Return every model call of an attempt once, in the order in which they were made.

    This decides what a call is, for all that count calls, list them or add up their tokens. A call
    counts once, however many of a framework, a client and a proxy recorded it. It counts if it
    failed, if it is a judge's, and if it is auxiliary: somebody paid for it. Which calls teach a
    model something is another question (:meth:`TraceTree.find_llm_calls`).

    Args:
        tree: The trace of one attempt.
    """
    return sorted(tree.find_llm_calls(_EVERY_CALL), key=lambda one: call_order(one.node.span))


def calls_among(spans: Sequence[Span]) -> list[MatchedCall]:
    """Return the calls among the spans of one attempt, as :func:`distinct_calls` does."""
    return distinct_calls(TraceTree.of_any(spans)) if spans else []


def total_tokens(calls: Iterable[MatchedCall]) -> tuple[int | None, int | None]:
    """Return the known tokens of prompts and of responses of calls; None if no call tells it."""
    total_taken = total_given = None
    for call in calls:
        taken, given = call.tokens
        if taken is not None:
            total_taken = taken + (total_taken or 0)
        if given is not None:
            total_given = given + (total_given or 0)
    return total_taken, total_given


def find_auxiliary_calls(tree: TraceTree, rules: CallRules | None = None) -> dict[str, str]:
    """Return what each auxiliary call of a trace is for, by the id of its span.

    Args:
        tree: The trace.
        rules: Which spans count as calls; None: those that adapters count by default.
    """
    return _auxiliary(tree.find_llm_calls(rules or CallRules()))


def _auxiliary(calls: Iterable[MatchedCall]) -> dict[str, str]:
    in_order = sorted(calls, key=lambda one: call_order(one.node.span))
    return auxiliary_calls([(one.node.span, one.call) for one in in_order])


def _stand_in(id: str, children: list[TraceTree]) -> TraceTree:
    """Return a virtual node for a parent that was never recorded."""
    starts = [child.start_time for child in children if child.start_time is not None]
    ends = [child.end_time for child in children if child.end_time is not None]
    return _virtual(
        id, semconv.SPAN_VIRTUAL, children, min(starts, default=None), max(ends, default=None)
    )


def _virtual_root(roots: list[TraceTree]) -> TraceTree:
    return _virtual(VIRTUAL_ROOT, VIRTUAL_ROOT, roots, roots[0].start_time, roots[-1].end_time)


def _virtual(
    id: str, name: str, children: list[TraceTree], start: float | None, end: float | None
) -> TraceTree:
    first = children[0].span
    span = Span.from_attributes(
        attributes={},
        rollout_id=first.rollout_id,
        attempt_id=first.attempt_id,
        sequence_id=first.sequence_id,
        name=name,
        trace_id=first.trace_id,
        span_id=id,
        start_time=start,
        end_time=end,
    )
    return TraceTree(id, span, children)


def _cut_cycles(
    nodes: dict[str, TraceTree], tops: list[TraceTree], report: AdapterReport
) -> list[TraceTree]:
    """Cut each parent cycle at one span; return these spans, which become roots."""
    reached = {node.id for top in tops for node in top.traverse() if node.id in nodes}
    if len(reached) == len(nodes):
        return []
    place = {key: index for index, key in enumerate(nodes)}
    cut: list[TraceTree] = []
    for node in nodes.values():
        if node.id in reached:
            continue
        # Every parent of an unreached node is unreached too, so following parents finds the cycle.
        path: dict[str, int] = {}
        step = node.id
        while step not in path:
            path[step] = len(path)
            step = nodes[step].span.parent_id or ""
        ring = list(path)[path[step] :]
        first = nodes[min(ring, key=place.__getitem__)]
        nodes[first.span.parent_id or ""].children.remove(first)
        report.repair("span", Repair.CYCLE)
        cut.append(first)
        reached.update(below.id for below in first.traverse())
    return cut


def by_start(node: TraceTree) -> tuple[bool, float]:
    """Return a sort key: nodes by start time, nodes without one last."""
    start = node.start_time
    return (start is None, 0.0 if start is None else start)
