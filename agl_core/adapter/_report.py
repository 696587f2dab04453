"""Reports of adapters: what they left out, and why.

The report explains why a training run has fewer rows than there were calls::

    >>> print(adapter.report)
    12 spans -> 3 triplets
    left out: 1 call (duplicate response id), 2 calls (no token ids)
    repaired: 2 spans (moved under the span that encloses them in time)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Item = Literal["span", "call", "reward", "message", "row"]
"""The kinds of things that are left out; plugins may count other kinds."""


class Reason(StrEnum):
    """Reasons for which the built-in adapters leave something out; the value is shown to users.

    Reasons are strings, so that a plugin's adapter can give other reasons.
    """

    # spans
    DUPLICATE_SPAN = "span id seen before"
    UNREAD_DIALECT = "written in the dialect"  # its name follows, and the package that reads it

    # calls
    NAME_MISMATCH = "span name does not match llm_call_match"
    OTHER_AGENT = "not inside an agent that matches agent_match"
    IN_REWARD = "made while computing a reward"
    DUPLICATE_RESPONSE = "duplicate response id"
    NESTED_CALL = "part of the call it is nested in"
    NO_TOKEN_IDS = "no token ids"  # noqa: S105
    NO_MESSAGES = "no messages captured"
    REPLAYED = "repeats a recorded call"
    BROKEN = "its answer broke off"
    INCOMPLETE_IDS = "fewer token ids than tokens sampled"
    AUXILIARY = "auxiliary"  # what it is for follows
    SEVERAL_CHOICES = "several choices, of which no later call shows the one that was used"

    # choices
    OTHER_CHOICE = "the agent went on with another choice of the call"

    # messages
    NOT_ASSISTANT = "a completion whose role is not assistant"
    NO_EQUIVALENT = "content that chat does not have, of type"

    # rewards
    NO_CALL = "no call ended before it that has no reward yet"
    REPLACED = "another reward of its call counts"
    NOT_A_NUMBER = "not a finite number"
    NO_TIME = "it has no start time"


class Repair(StrEnum):
    """Repairs that the built-in adapters make without losing data; the value is shown to users."""

    MISSING_PARENT = "missing parent replaced by a virtual one"
    CYCLE = "parent cycle cut"
    REPARENTED = "moved under the span that encloses them in time"
    BAD_TOKEN_IDS = "token ids that are not integers ignored"  # noqa: S105
    BAD_LOGPROBS = "log-probabilities that cannot be read ignored"


@dataclass(slots=True)
class AdapterReport:
    """Counts of what one adaptation read, produced, left out and repaired.

    An adapter fills its report while it converts and does not change it afterwards, so any thread
    may read a finished report. Reports can be added: ``sum(reports, AdapterReport())``.

    Attributes:
        spans: How many spans were read.
        produced: How many results there are, by their plural name (``{"triplets": 3}``).
        left_out: How many things were left out, by ``(item, reason)``.
        repaired: How many things were repaired and kept, by ``(item, repair)``.
    """

    spans: int = 0
    produced: dict[str, int] = field(default_factory=dict[str, int])
    left_out: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    repaired: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def leave_out(self, item: Item | str, reason: Reason | str, count: int = 1) -> None:
        """Count something that was left out; a count of 0 adds no entry."""
        _add(self.left_out, (item, str(reason)), count)

    def repair(self, item: Item | str, repair: Repair | str, count: int = 1) -> None:
        """Count something that was repaired and kept; a count of 0 adds no entry."""
        _add(self.repaired, (item, str(repair)), count)

    def produce(self, what: str, count: int) -> None:
        """Count results; a count of 0 adds an entry, too."""
        self.produced[what] = self.produced.get(what, 0) + count

    def count(self, item: Item | str, reason: Reason | str | None = None) -> int:
        """Return how many of ``item`` were left out, for one reason or for any."""
        return sum(
            number
            for (kind, why), number in self.left_out.items()
            if kind == item and (reason is None or why == str(reason))
        )

    def __add__(self, other: AdapterReport) -> AdapterReport:
        total = AdapterReport(self.spans + other.spans)
        for report in (self, other):
            for what, number in report.produced.items():
                total.produce(what, number)
            for key, number in report.left_out.items():
                _add(total.left_out, key, number)
            for key, number in report.repaired.items():
                _add(total.repaired, key, number)
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-serializable values: ``{item: {reason: count}}``."""
        return {
            "spans": self.spans,
            "produced": dict(self.produced),
            "left_out": _nested(self.left_out.items()),
            "repaired": _nested(self.repaired.items()),
        }

    def __str__(self) -> str:
        produced = ", ".join(f"{number} {what}" for what, number in self.produced.items())
        lines = [f"{self.spans} spans -> {produced or 'nothing'}"]
        lines += [
            f"{title}: {', '.join(_phrase(*entry) for entry in counts.items())}"
            for title, counts in (("left out", self.left_out), ("repaired", self.repaired))
            if counts
        ]
        return "\n".join(lines)


def _add(counts: dict[tuple[str, str], int], key: tuple[str, str], count: int) -> None:
    if count:
        counts[key] = counts.get(key, 0) + count


def _nested(counts: Iterable[tuple[tuple[str, str], int]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (item, reason), number in counts:
        nested.setdefault(item, {})[reason] = number
    return nested


def _phrase(key: tuple[str, str], number: int) -> str:
    item, reason = key
    return f"{number} {item if number == 1 else f'{item}s'} ({reason})"
