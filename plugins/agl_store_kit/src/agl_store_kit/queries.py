"""Queries as values, which the engine passes to a storage backend.

Each value is frozen and checked by its constructor: the limit, the offset, the direction, the sort
field and the filter logic are valid. :mod:`agl_store_kit.filters` defines filters and orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from agl_core.types import (
    Attempt,
    FilterOptions,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from agl_store_kit.filters import (
    FIGURES,
    check_logic,
    check_page,
    compile_filter,
    cut,
    filter_options,
    sort_key,
)
from agl_store_kit.slices import in_slices, sorted_in_slices

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Base of all queries: the filters' logic, the order, and the page of it.

    Attributes:
        model: Class of the records.
        filters: Names of the optional filters: ``field``, ``field_in`` or ``field_contains``.
        filter_logic: How the optional filters that are set combine: ``and`` or ``or``.
        sort_by: A sortable field of the model; None means insertion order.
        sort_order: ``asc`` or ``desc``; equal keys keep insertion order in both.
        limit: Page size; -1 means all, 0 returns only the total.
        offset: Matches to skip.

    Raises:
        InvalidArgumentError: A value is outside its domain.
    """

    model: ClassVar[type[BaseModel]]
    filters: ClassVar[tuple[str, ...]] = ()

    filter_logic: str = "and"
    sort_by: str | None = None
    sort_order: str = "asc"
    limit: int = -1
    offset: int = 0

    def __post_init__(self) -> None:
        check_logic(self.filter_logic)
        check_page(self.limit, self.offset, self.sort_order)
        if self.sort_by is not None:
            sort_key(self.model, self.sort_by)

    @property
    def conditions(self) -> Mapping[str, Any]:
        """The optional filters that are set, by name."""
        values = {name: getattr(self, name) for name in self.filters}
        return {name: value for name, value in values.items() if value is not None}

    def filter_options(self) -> FilterOptions:
        """Return the optional filters as field, operator and value."""
        return filter_options(logic=self.filter_logic, **self.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutQuery(Query):
    """Rollouts; see :meth:`LightningStore.query_rollouts`."""

    model: ClassVar[type[BaseModel]] = Rollout
    filters: ClassVar[tuple[str, ...]] = (
        "status_in",
        "mode_in",
        "rollout_id_in",
        "rollout_id_contains",
    )

    status_in: Sequence[str] | None = None
    mode_in: Sequence[str] | None = None
    rollout_id_in: Sequence[str] | None = None
    rollout_id_contains: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptQuery(Query):
    """The attempts of one rollout; see :meth:`LightningStore.query_attempts`."""

    model: ClassVar[type[BaseModel]] = Attempt

    rollout_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesQuery(Query):
    """Resources snapshots; see :meth:`LightningStore.query_resources`."""

    model: ClassVar[type[BaseModel]] = ResourcesUpdate
    filters: ClassVar[tuple[str, ...]] = ("resources_id", "resources_id_contains")

    resources_id: str | None = None
    resources_id_contains: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerQuery(Query):
    """Workers; see :meth:`LightningStore.query_workers`."""

    model: ClassVar[type[BaseModel]] = Worker
    filters: ClassVar[tuple[str, ...]] = ("status_in", "worker_id_contains")

    status_in: Sequence[str] | None = None
    worker_id_contains: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanQuery(Query):
    """The spans of one rollout; see :meth:`LightningStore.query_spans`.

    Attributes:
        rollout_id: The rollout; always applies.
        attempt_id: One of its attempts, or None for all; always applies. Never ``"latest"``: the
            engine has replaced it by an id.
    """

    model: ClassVar[type[BaseModel]] = Span
    filters: ClassVar[tuple[str, ...]] = (
        "trace_id",
        "trace_id_contains",
        "span_id",
        "span_id_contains",
        "parent_id",
        "parent_id_contains",
        "name",
        "name_contains",
    )

    rollout_id: str
    attempt_id: str | None = None
    trace_id: str | None = None
    trace_id_contains: str | None = None
    span_id: str | None = None
    span_id_contains: str | None = None
    parent_id: str | None = None
    parent_id_contains: str | None = None
    name: str | None = None
    name_contains: str | None = None


def _figure(figures: Callable[[T], Mapping[str, Any]], name: str, record: T) -> Any:
    return figures(record).get(name)


def run_query(
    records: Iterable[T],
    query: Query,
    figures: Callable[[T], Mapping[str, Any]] | None = None,
) -> tuple[Sequence[T], int]:
    """Filter, sort and page records given in insertion order; the reference for all stores.

    Args:
        records: Records in the scope of the query, in insertion order.
        query: The query.
        figures: Returns what :func:`agl_store_kit.changed_figures` found for a rollout so far, by
            name. Rollouts are sorted by their reward or duration with it.

    Returns:
        The page, and the number of matches before paging.
    """
    matches = compile_filter(query.filter_options())
    found = list(records) if matches is None else [item for item in records if matches(item)]
    if (by := query.sort_by) is not None:
        figure = partial(_figure, figures, by) if figures and by in FIGURES else None
        key = sort_key(query.model, by, figure)
        found.sort(key=key, reverse=query.sort_order == "desc")
    return cut(found, query.limit, query.offset), len(found)


async def run_query_in_slices(records: Sequence[T], query: Query) -> tuple[Sequence[T], int]:
    """Do what :func:`run_query` does, without holding the event loop over many records.

    Args:
        records: Records in the scope of the query, in insertion order; nobody changes the sequence
            meanwhile.
        query: The query.

    Returns:
        The page, and the number of matches before paging.
    """
    matches = compile_filter(query.filter_options())
    found = records
    if matches is not None:
        found = await in_slices(lambda part: filter(matches, part), records)
    if query.sort_by is not None:
        key = sort_key(query.model, query.sort_by)
        found = await sorted_in_slices(found, key, descending=query.sort_order == "desc")
    return cut(found, query.limit, query.offset), len(found)
