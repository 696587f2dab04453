"""The state of one replay: which recorded calls were answered, and where the agent differed."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from agl_core.errors import AglError
from agl_core.genai import Json, Protocol, dumps, loads
from agl_replay.comparison import without_ids
from agl_replay.differences import Difference, differences
from agl_replay.live import LiveModels
from agl_replay.recording import RecordedCall, RecordedOperation, Timed
from agl_replay.requests import canonical_request

__all__ = ["Divergence", "OnDivergence", "ReplayDivergenceError", "ReplaySession"]

OnDivergence = Literal["stop", "live"]
T = TypeVar("T", bound=Timed)

_OUTCOME: Final = frozenset({"result", "error"})
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True)
class Divergence:
    """The first call of a model or a recorded operation that was not the recorded one.

    Attributes:
        number: Place of the model call among those of the replay, from 1; of an operation, that of
            the next model call.
        differences: The agent's requests then and now; empty if the recording has no call left.
        operation: Name of the operation; empty for a model call.
    """

    number: int
    differences: Sequence[Difference]
    operation: str = ""

    @property
    def where(self) -> str:
        """The first difference: ``call 2``, or ``operation look_up before call 2``."""
        before = f"operation {self.operation} before " if self.operation else ""
        return f"{before}call {self.number}"

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.where}: the recording has no further call"
        lines = [line for one in self.differences for line in one.lines()]
        return "\n".join([f"{self.where} differs from the recorded one:", *lines])


class ReplayDivergenceError(AglError, RuntimeError):
    """An agent called a recorded operation in another way than the recorded agent."""


class ReplaySession:
    """Chooses the recorded answer of each call of one attempt. Thread-safe.

    Recorded calls are answered in order, those of operations in the order of their name. Calls that
    overlapped when they were recorded are answered in any order, since an agent that makes several
    calls at once does not order them.

    Args:
        calls: The recorded model calls, in order.
        operations: The recorded operations, in order.
        until: Number of calls to answer from the recording; None answers all.
        beyond: What happens to calls after ``until``: ``stop`` refuses them, ``live`` sends them to
            the live model.
        on_divergence: The same for calls that differ, and for all calls after such a call.
        compare: Whether a call must ask what the recorded one asked; if not, a call is answered by
            its place, and an operation by its name and place. Of calls that overlapped, the one
            answers that asked the same, or else the most similar.

    Attributes:
        models: The live models; set before the first call.
        divergence: The first call that differed.
        answered: Number of calls answered from the recording.
        live: Number of calls sent to the live model.
        stopped: Whether a call was refused since ``until`` was reached.
        skipped: Ids of recorded spans below operations that were answered.
    """

    def __init__(
        self,
        calls: Sequence[RecordedCall],
        operations: Sequence[RecordedOperation] = (),
        *,
        until: int | None = None,
        beyond: OnDivergence = "stop",
        on_divergence: OnDivergence = "stop",
        compare: bool = True,
    ) -> None:
        self._left = list(calls)
        self._operations = list(operations)
        self._known = {one.name for one in operations}
        self._lock = threading.Lock()
        self._limit = len(calls) if until is None else until
        self._compare = compare
        self._fork = math.inf
        if until is not None and until < len(calls) and beyond == "live":
            self._fork = calls[until].span.start_time or math.inf
        self._passed = 0
        self._bounded = until is not None
        self._beyond: OnDivergence = beyond
        self._on_divergence: OnDivergence = on_divergence
        self.models: LiveModels | None = None
        self.divergence: Divergence | None = None
        self.answered = 0
        self.live = 0
        self.stopped = False
        self.skipped: set[str] = set()

    @property
    def unasked(self) -> Sequence[RecordedCall]:
        """The recorded calls that the agent did not make."""
        return tuple(self._left)

    def take(self, protocol: Protocol, request: Mapping[str, Any]) -> RecordedCall | OnDivergence:
        """Return the recorded call that answers a request, or what to do without one."""
        with self._lock:
            return self._take(protocol, request)

    def _take(self, protocol: Protocol, request: Mapping[str, Any]) -> RecordedCall | OnDivergence:
        if self.divergence is None and self._at_limit:
            if self._beyond == "live":
                self.live += 1
            else:
                self.stopped = True
            return self._beyond
        found = None if self.divergence is not None else self._match(protocol, request)
        if found is not None:
            self._left.remove(found)
            self.answered += 1
            self._passed += 1
            return found
        if self.divergence is None:
            self.divergence = Divergence(self._passed + 1, self._difference(protocol, request))
        if self._on_divergence == "live":
            self.live += 1
        return self._on_divergence

    def answer(self, name: str, arguments: Json) -> Json | None:
        """Return the record that answers an operation; None if it is to be run.

        An operation of which the recording has no call at all is run.

        Raises:
            ReplayDivergenceError: The arguments differ, or the recording has no further call.
        """
        with self._lock:
            if name not in self._known:
                return None
            if self.divergence is None:
                left = [one for one in self._operations if one.name == name]
                forked = self._at_limit and self._beyond == "live"
                if forked:  # what came before the first live call is still repeated
                    left = [one for one in left if (one.span.start_time or 0.0) < self._fork]
                if forked and self.live:
                    return None
                if found := _match_operation(left, arguments, compare=self._compare):
                    self._repeat(found)
                    return {key: found.record[key] for key in _OUTCOME if key in found.record}
                if forked:
                    return None
                different = _different(left[0].record["arguments"], arguments) if left else []
                self.divergence = Divergence(self._passed + 1, different, name)
            if self._on_divergence == "live":
                return None
            raise ReplayDivergenceError(str(self.divergence))

    def _repeat(self, operation: RecordedOperation) -> None:
        """Note an answered operation; what the agent did within it does not happen again."""
        self._operations.remove(operation)
        if not operation.inside or not operation.record.keys() & _OUTCOME:
            return
        self.skipped |= operation.inside
        self._operations = [
            one for one in self._operations if one.span.span_id not in operation.inside
        ]
        left = [one for one in self._left if one.span.span_id not in operation.inside]
        self._passed += len(self._left) - len(left)
        self._left = left

    @property
    def _at_limit(self) -> bool:
        return self._bounded and self._passed >= self._limit

    def _match(self, protocol: Protocol, request: Mapping[str, Any]) -> RecordedCall | None:
        candidates = [call for call in _next(self._left) if call.protocol == protocol]
        if len(candidates) == 1 and not self._compare:
            return candidates[0]
        asked = canonical_request(protocol, request) if candidates else {}
        equal = next((call for call in candidates if call.request == asked), None)
        if equal is not None or self._compare:
            return equal
        return min(candidates, key=lambda call: _distance(call.request, asked), default=None)

    def _difference(self, protocol: Protocol, request: Mapping[str, Any]) -> list[Difference]:
        if not self._left:
            return []
        expected = self._left[0]
        if expected.protocol != protocol:
            return [Difference("protocol", expected.protocol, protocol)]
        asked = canonical_request(protocol, request)
        return list(differences(expected.request, asked))


def _match_operation(
    left: Sequence[RecordedOperation], arguments: Json, *, compare: bool
) -> RecordedOperation | None:
    candidates = _next(left)
    asked = _comparable(arguments)
    equal = next((one for one in candidates if _comparable(one.record["arguments"]) == asked), None)
    if equal is not None or compare:
        return equal
    return min(
        candidates, key=lambda one: _distance(one.record["arguments"], arguments), default=None
    )


def _next(left: Sequence[T]) -> Sequence[T]:
    """Return what may come next: the first that is left, and those that overlapped with it."""
    for position, one in enumerate(left):
        if not all(earlier.overlaps(one) for earlier in left[:position]):
            return left[:position]
    return left


def _distance(then: Json, now: Json) -> int:
    """Return how many words one of two JSON objects has and the other has not."""
    before, after = _words(then), _words(now)
    return (before - after).total() + (after - before).total()


def _words(value: Json) -> Counter[str]:
    return Counter(_WORD.findall(without_ids(dumps(value).decode())))


def _different(then: Json, now: Json) -> list[Difference]:
    return list(differences(loads(_comparable(then)), loads(_comparable(now)), "arguments"))


def _comparable(arguments: Json) -> bytes:
    ordered = {key: arguments[key] for key in sorted(arguments)}
    return without_ids(dumps(ordered).decode()).encode()
