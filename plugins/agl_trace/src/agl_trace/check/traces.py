"""Checks stored traces for the data that algorithms need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from agl_adapter_trajectory import CertificateSummary, TraceToTrajectory
from agl_adapters import TracerTraceToTriplet
from agl_core.adapter import AdapterReport, Reason, read_reward
from agl_core.doctor import Finding, Severity, examples
from agl_core.errors import InvalidArgumentError
from agl_core.types import RUNNING_STATUSES, AttemptedRollout, Span

__all__ = ["TraceChecks"]

_CAPTURE = (
    "the otel tracer records calls of the OpenAI and Anthropic SDKs; point any other client at the "
    "resource's base_url (the proxy records its calls), or give the tracer instrument='auto'"
)
_EMPTY: dict[str, tuple[Severity, str, str]] = {
    "earlier": (
        "info",
        "have no spans in their latest attempt, but in earlier ones",
        "read those: query_spans(rollout_id) without an attempt",
    ),
    "running": (
        "info",
        "have no spans yet: their attempts are still running",
        "",
    ),
    "failed": (
        "warning",
        "have no spans: their attempts failed before the agent did anything",
        "see the errors of failed rollouts above",
    ),
    "silent": (
        "error",
        "succeeded without a single span: no reward, nothing emitted, no call recorded",
        f"return a number from the agent; {_CAPTURE}; the dummy tracer stores nothing",
    ),
}

_ITEMS = {"call": "model calls", "choice": "choices of model calls"}
"""What is told of as left out, in words."""
_SAME_CALL = (Reason.NESTED_CALL, Reason.DUPLICATE_RESPONSE)
"""Reasons that lose no call: another span of it was read."""
_INTENDED = (Reason.AUXILIARY, Reason.IN_REWARD, Reason.REPLAYED, Reason.OTHER_CHOICE)
"""Beginnings of the reasons for which a call or a choice is not meant to be trained."""
_TODO: dict[str, str] = {
    Reason.BROKEN: "look at the errors of these calls with agl trace",
    Reason.INCOMPLETE_IDS: (
        "the model server lost ids, as tool parsers do in streams: update it, or do not stream"
    ),
    Reason.SEVERAL_CHOICES: "ask for one choice, or send the one that was used with the next call",
}


class TraceChecks:
    """Collects the problems of traces, and reports each problem once for all traces."""

    def __init__(self) -> None:
        self._adapter = TracerTraceToTriplet()
        self._report = AdapterReport()
        self._trajectories = TraceToTrajectory()
        self._certified = CertificateSummary()
        self._mixed: list[str] = []
        self._empty: dict[str, list[str]] = defaultdict(list)
        self._no_calls: list[str] = []
        self._left_out: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._no_ids: list[str] = []
        self._no_reward: list[str] = []
        self._unmatched: dict[str, list[str]] = defaultdict(list)
        self._unreadable: dict[str, list[str]] = defaultdict(list)
        self._calls = self._calls_without_ids = 0

    def add(self, rollout: AttemptedRollout, spans: Sequence[Span]) -> None:
        """Check the spans of a rollout.

        Args:
            rollout: The rollout with its latest attempt.
            spans: The spans of all its attempts.
        """
        name, attempt = rollout.rollout_id, rollout.attempt
        latest = [span for span in spans if span.attempt_id == attempt.attempt_id]
        if not latest:
            self._empty[_why_empty(attempt.status, earlier=bool(spans))].append(name)
            return
        if attempt.status == "succeeded" and all(read_reward(span) is None for span in latest):
            self._no_reward.append(name)
        try:
            triplets, report = self._adapter.adapt_with_report(latest)
        except InvalidArgumentError as error:
            self._unreadable[str(error)].append(name)
            return
        self._report += report
        for item, reason in report.left_out:
            if item == "reward":
                self._unmatched[reason].append(name)
        lost = [(item, reason) for item, reason in report.left_out if _is_lost(item, reason)]
        for each in lost:
            self._left_out[each].append(name)
        if not triplets and not lost:
            self._no_calls.append(name)
        without = [
            triplet
            for triplet in triplets
            if not (triplet.prompt.get("token_ids") and triplet.response.get("token_ids"))
        ]
        self._calls += len(triplets)
        self._calls_without_ids += len(without)
        if without:
            self._no_ids.append(name)
        if len(without) < len(triplets):
            certified = CertificateSummary.of(self._trajectories.adapt(latest))
            self._certified += certified
            if certified.mixed:
                self._mixed.append(name)

    def findings(self) -> list[Finding]:
        """Return the problems found."""
        return [
            *self._about_empty(),
            *self._about_dialects(),
            *self._about_calls(),
            *self._about_rows(),
            *self._about_rewards(),
        ]

    def _about_empty(self) -> Iterator[Finding]:
        for why, (severity, what, todo) in _EMPTY.items():
            if ids := self._empty.get(why):
                what = f"{len(ids)} rollouts ({examples(ids)}) {what}"
                yield Finding(severity, "empty-trace", what, todo, tuple(ids))
        for error, ids in self._unreadable.items():
            what = f"{len(ids)} traces cannot be read ({examples(ids)}): {error}"
            yield Finding("error", "trace", what, "look at their spans", tuple(ids))

    def _about_dialects(self) -> Iterator[Finding]:
        for (item, reason), count in self._report.left_out.items():
            if item == "span" and reason.startswith(Reason.UNREAD_DIALECT):
                what, _, todo = reason.partition(": ")
                yield Finding("warning", "dialect", f"{count} spans are {what}", todo)

    def _about_calls(self) -> Iterator[Finding]:
        if ids := self._no_calls:
            what = f"{len(ids)} traces have spans but no model call ({examples(ids)})"
            yield Finding("info", "no-calls", what, f"if the agent calls a model: {_CAPTURE}", ids)
        for (item, reason), ids in self._left_out.items():
            count = self._report.count(item, reason)
            what = f"{count} {_ITEMS[item]} are left out: {reason} ({examples(ids)})"
            severity: Severity = "info" if reason.startswith(_INTENDED) else "warning"
            yield Finding(severity, "left-out", what, _TODO.get(reason, ""), tuple(ids))
        if ids := self._no_ids:
            what = (
                f"{self._calls_without_ids} of {self._calls} model calls have no token ids "
                f"({len(ids)} rollouts: {examples(ids)})"
            )
            todo = (
                "nothing, for prompt optimisation; training weights needs them: serve the model "
                "with vLLM and call it through the proxy"
            )
            yield Finding("warning", "token-ids", what, todo, tuple(ids))
        if self._calls > self._calls_without_ids:
            with_ids = self._calls - self._calls_without_ids
            what = f"{with_ids} of {self._calls} model calls have token ids"
            yield Finding("ok", "token-ids", what)

    def _about_rows(self) -> Iterator[Finding]:
        """Report the certificates of the rows that training would use."""
        if not self._certified.rows:
            return
        yield Finding("ok", "rows", f"to train on: {self._certified}")
        if ids := self._mixed:
            what = (
                f"{self._certified.mixed} rows were answered by several versions of the model "
                f"({examples(ids)})"
            )
            todo = (
                "nothing, for algorithms that weigh each token by its own policy; else drain the "
                "proxy before the weights change"
            )
            yield Finding("warning", "versions", what, todo, tuple(ids))
        lacking = self._certified.rows - self._certified.with_logprobs
        if lacking:
            what = f"{lacking} of {self._certified.rows} rows lack log-probabilities"
            todo = "nothing, if the trainer recomputes them; else have the backend return them"
            yield Finding("info", "logprobs", what, todo)

    def _about_rewards(self) -> Iterator[Finding]:
        if ids := self._no_reward:
            what = f"{len(ids)} attempts succeeded without a reward ({examples(ids)})"
            todo = "return a number from the agent, or call emit_reward"
            yield Finding("warning", "no-reward", what, todo, tuple(ids))
        for reason, ids in self._unmatched.items():
            what = (
                f"{self._report.count('reward', reason)} rewards match no model call: {reason} "
                f"({examples(ids)})"
            )
            todo = (
                "emit each reward after its call, and one reward per call; without model calls a "
                "reward matches none"
            )
            yield Finding("warning", "reward", what, todo, tuple(ids))


def _is_lost(item: str, reason: str) -> bool:
    """Return whether an adapter left out a call, or a choice of one, that no other span holds."""
    return item in _ITEMS and reason not in _SAME_CALL


def _why_empty(status: str, *, earlier: bool) -> str:
    if earlier:
        return "earlier"
    if status in RUNNING_STATUSES:
        return "running"
    return "silent" if status == "succeeded" else "failed"
