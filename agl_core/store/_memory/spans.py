"""The spans of one rollout, in insertion order and in sequence order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

from agl_core.store._encoded import EncodedSpan
from agl_core.store._filters import cut
from agl_core.store._queries import SpanQuery, run_query

_sequence_id = attrgetter("sequence_id")


class _Series:
    """Spans in insertion order, and by sequence id (stable).

    Spans nearly always arrive in sequence order; until one does not, both are one list.
    """

    __slots__ = ("arrived", "ordered")

    def __init__(self) -> None:
        self.arrived: list[EncodedSpan] = []
        self.ordered = self.arrived

    def append(self, span: EncodedSpan) -> None:
        ordered = self.ordered
        in_order = not ordered or ordered[-1].sequence_id <= span.sequence_id
        if not in_order and ordered is self.arrived:
            self.ordered = ordered = list(ordered)
        self.arrived.append(span)
        if ordered is self.arrived:
            return
        if in_order:
            ordered.append(span)
        else:
            insort(ordered, span, key=_sequence_id)

    def copy(self) -> _Series:
        twin = _Series()
        twin.arrived = list(self.arrived)
        twin.ordered = twin.arrived if self.ordered is self.arrived else list(self.ordered)
        return twin


class SpanLog:
    """Spans of a rollout by attempt. Not thread-safe; the backend's lock guards it."""

    __slots__ = ("_all", "_attempts", "_ids", "size")

    def __init__(self) -> None:
        # While only one attempt has spans, its series is the rollout's as well.
        self._all: _Series | None = None
        self._attempts: dict[str, _Series] = {}
        self._ids: dict[str, dict[str, EncodedSpan]] = {}
        self.size = 0
        """Estimated size of these spans, in bytes."""

    def __len__(self) -> int:
        return 0 if self._all is None else len(self._all.arrived)

    def __contains__(self, key: tuple[str, str]) -> bool:
        ids = self._ids.get(key[0])
        return ids is not None and key[1] in ids

    def append(self, span: EncodedSpan) -> None:
        """Add a span whose ``(attempt_id, span_id)`` is not in the log yet."""
        series = self._attempts.get(span.attempt_id)
        if series is None:
            if self._all is not None and len(self._attempts) == 1:
                self._all = self._all.copy()
            series = self._attempts[span.attempt_id] = _Series()
            self._ids[span.attempt_id] = {}
            if self._all is None:
                self._all = series
        self._ids[span.attempt_id][span.span_id] = span
        series.append(span)
        if self._all is not None and self._all is not series:
            self._all.append(span)

    def find(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], int]:
        """Return a page of the spans, and the number of matches."""
        given = set(query.conditions)
        if query.span_id is not None and (query.filter_logic == "and" or given == {"span_id"}):
            return run_query(self._with_id(query.span_id, query.attempt_id), query)
        attempt_id = query.attempt_id
        series = self._all if attempt_id is None else self._attempts.get(attempt_id)
        if series is None:
            return (), 0
        if query.sort_by == "sequence_id" and query.sort_order == "asc":
            spans, is_sorted = series.ordered, True
        else:
            spans, is_sorted = series.arrived, query.sort_by is None
        if is_sorted and not given:
            return cut(spans, query.limit, query.offset), len(spans)
        return run_query(spans, query)

    def _with_id(self, span_id: str, attempt_id: str | None) -> list[EncodedSpan]:
        """Return the spans with this id: at most one per attempt, in the order of attempts."""
        if attempt_id is None:
            scope = list(self._ids.values())
        else:
            scope = [self._ids.get(attempt_id, {})]
        return [ids[span_id] for ids in scope if span_id in ids]
