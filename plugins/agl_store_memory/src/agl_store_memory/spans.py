"""The spans of one rollout, in insertion order and in sequence order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from agl_core.store import EncodedSpan
from agl_store_kit.filters import cut
from agl_store_kit.queries import SpanQuery, run_query

_sequence_id = attrgetter("sequence_id")


class _Series:
    """Spans in insertion order, by sequence id (stable), and by span id.

    Spans nearly always arrive in sequence order; until one does not, both orders are one list.
    """

    __slots__ = ("arrived", "by_id", "ordered")

    def __init__(self) -> None:
        self.arrived: list[EncodedSpan] = []
        self.ordered = self.arrived
        self.by_id: dict[str, EncodedSpan] = {}
        """Empty in the series of all attempts, which may use an id several times."""

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

    __slots__ = ("_all", "_attempts", "size")

    def __init__(self) -> None:
        # While only one attempt has spans, its series is the rollout's as well.
        self._all: _Series | None = None
        self._attempts: dict[str, _Series] = {}
        self.size = 0
        """Estimated size of these spans, in bytes."""

    def __len__(self) -> int:
        return 0 if self._all is None else len(self._all.arrived)

    def add(self, span: EncodedSpan) -> bool:
        """Add a span, and return True; return False if its attempt has one of this id."""
        series = self._attempts.get(span.attempt_id)
        if series is None:
            if self._all is not None and len(self._attempts) == 1:
                self._all = self._all.copy()
            series = self._attempts[span.attempt_id] = _Series()
            if self._all is None:
                self._all = series
        elif span.span_id in series.by_id:
            return False
        series.by_id[span.span_id] = span
        series.append(span)
        if self._all is not None and self._all is not series:
            self._all.append(span)
        return True

    def find(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], int] | None:
        """Return a page of the spans and the number of matches, if no search is needed."""
        given = set(query.conditions)
        if query.span_id is not None and (query.filter_logic == "and" or given == {"span_id"}):
            return run_query(self._with_id(query.span_id, query.attempt_id), query)
        series = self._series(query.attempt_id)
        if series is None:
            return (), 0
        if given or query.sort_by not in (None, "sequence_id"):
            return None
        if query.sort_by is None:
            spans = series.arrived
        elif query.sort_order == "asc":
            spans = series.ordered
        else:
            return None
        return cut(spans, query.limit, query.offset), len(spans)

    def in_scope(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], SpanQuery]:
        """Return a copy of the spans to search, and the query, without the order that they have."""
        series = self._series(query.attempt_id)
        if series is None:
            return (), query
        if query.sort_by == "sequence_id" and query.sort_order == "asc":
            return list(series.ordered), replace(query, sort_by=None)
        return list(series.arrived), query

    def _series(self, attempt_id: str | None) -> _Series | None:
        return self._all if attempt_id is None else self._attempts.get(attempt_id)

    def _with_id(self, span_id: str, attempt_id: str | None) -> list[EncodedSpan]:
        """Return the spans with this id: at most one per attempt, in the order of attempts."""
        attempts = self._attempts if attempt_id is None else {attempt_id} & self._attempts.keys()
        scope = [self._attempts[each].by_id for each in attempts]
        return [by_id[span_id] for by_id in scope if span_id in by_id]
