"""Filters, sort orders and result pages of queries to stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar, overload

from pydantic import BaseModel

T_co = TypeVar("T_co", covariant=True)

SortOrder = Literal["asc", "desc"]


class PaginatedResult(BaseModel, Sequence[T_co], Generic[T_co]):
    """One page of a query; also a read-only sequence over its items."""

    items: Sequence[T_co]
    limit: int
    """The requested limit; -1 means unlimited."""
    offset: int
    total: int
    """Number of matching items on all pages together."""

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        return self.items[index]

    def __iter__(self) -> Iterator[T_co]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self.items)

    def __repr__(self) -> str:
        end = "" if self.limit == -1 else self.offset + len(self.items)
        shown = f"[{self.items[0]!r}, ...]" if len(self.items) > 1 else repr(list(self.items))
        return f"<PaginatedResult ({self.offset}:{end} of {self.total}) {shown}>"

    def __str__(self) -> str:
        return repr(self)


class FilterField(TypedDict, total=False):
    """Conditions on one field; an operator with value None is ignored."""

    exact: Any
    within: Sequence[Any]
    contains: str


FilterOptions = dict[str, Any]
"""Field name to :class:`FilterField`, plus two reserved keys.

``_aggregate``: ``"and"`` (default) or ``"or"``, how the conditions of the ordinary fields combine.
``_must``: a mapping (or a sequence of mappings) of field name to :class:`FilterField`; these
conditions must hold regardless of ``_aggregate``.
"""


class SortOptions(TypedDict, total=False):
    """Field to sort by, and the direction (``asc`` when absent)."""

    name: str
    order: SortOrder
