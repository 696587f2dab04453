"""Sorted views of the rollouts; with them a query costs as much as its page is long."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Protocol

from agl_core.types import Rollout
from agl_store_kit.filters import sort_key
from agl_store_kit.slices import in_slices, sorted_in_slices
from agl_store_memory.sorted_list import SortedList

_KEPT: Final = 8
"""Orders that are kept; a dashboard, a terminal and a runner use about five."""
_Name = tuple[str | None, str]
"""What an index is sorted by, and its direction."""


class _Entry(Protocol):
    ordinal: int
    rollout: Rollout


class _Index:
    """All rollouts by status, each status in one order.

    Items are ``(key, ordinal, entry)``. Reading an index backwards reverses the insertion order of
    equal keys, so a descending index counts ordinals downwards.
    """

    def __init__(self, key: Callable[[Any], Any], descending: bool) -> None:
        self._key = key
        self._sign = -1 if descending else 1
        self._descending = descending
        self._parts: dict[str, SortedList[Any]] = {}

    async def fill(self, records: Sequence[tuple[_Entry, Rollout]]) -> None:
        """Add all entries to the empty index, in slices. The records of the entries are given."""
        by_status: defaultdict[str, list[Any]] = defaultdict(list)

        def place(part: Sequence[tuple[_Entry, Rollout]]) -> Iterable[None]:
            for entry, rollout in part:
                by_status[rollout.status].append(self._item(entry, rollout))
            return ()

        await in_slices(place, records)
        for status, items in by_status.items():
            ordered = await sorted_in_slices(items, itemgetter(0, 1))
            self._parts[status] = SortedList[Any](ordered)

    def _item(self, entry: _Entry, rollout: Rollout) -> tuple[Any, int, _Entry]:
        return (self._key(rollout), self._sign * entry.ordinal, entry)

    def replace(self, entry: _Entry, old: Rollout | None, new: Rollout) -> None:
        item = self._item(entry, new)
        if old is not None:
            previous = self._item(entry, old)
            if old.status == new.status and previous == item:
                return
            self._parts[old.status].remove(previous)
        part = self._parts.get(new.status)
        if part is None:
            part = self._parts[new.status] = SortedList[Any]()
        part.add(item)

    def page(
        self, statuses: Collection[str] | None, limit: int, offset: int
    ) -> tuple[list[Any], int]:
        parts = [
            part for status, part in self._parts.items() if statuses is None or status in statuses
        ]
        total = sum(map(len, parts))
        stop = None if limit == -1 else limit
        if len(parts) == 1:
            items = parts[0].iterate(offset, descending=self._descending)
        else:
            items = islice(self._merged(parts), offset, None)
        return [entry for _, _, entry in islice(items, stop)], total

    def _merged(self, parts: list[SortedList[Any]]) -> Iterator[Any]:
        streams = (part.iterate(descending=self._descending) for part in parts)
        return heapq.merge(*streams, reverse=self._descending)


class IndexBuild:
    """Makes an index while the rollouts go on changing."""

    def __init__(self, name: _Name, index: _Index, entries: Iterable[_Entry]) -> None:
        self.name = name
        self.index = index
        self.is_complete = False
        self.changes: list[tuple[_Entry, Rollout | None, Rollout]] = []
        """What has changed since the build began."""
        self._records = [(entry, entry.rollout) for entry in entries]

    async def run(self) -> None:
        """Fill the index, without the store's lock."""
        await self.index.fill(self._records)
        self.is_complete = True


class RolloutIndexes:
    """An index per sort order: built at the first query with this order, then maintained.

    Not thread-safe; the store's lock guards it.
    """

    def __init__(self) -> None:
        self._indexes: dict[_Name, _Index] = {}
        self._builds: list[IndexBuild] = []
        self._counts: defaultdict[str, int] = defaultdict(int)

    def replace(self, entry: _Entry, old: Rollout | None, new: Rollout) -> None:
        """Update the indexes after an entry's rollout changed; ``old`` is None for a new entry."""
        if old is None or old.status != new.status:
            self._counts[new.status] += 1
            if old is not None:
                self._counts[old.status] -= 1
        for index in self._indexes.values():
            index.replace(entry, old, new)
        for build in self._builds:
            build.changes.append((entry, old, new))

    def page(
        self,
        statuses: Collection[str] | None,
        *,
        sort_by: str | None,
        sort_order: str,
        limit: int,
        offset: int,
    ) -> tuple[list[Any], int] | None:
        """Return a page of the entries with one of these statuses (None: any), and their number.

        Returns None if the index for this order has yet to be built.

        Args:
            statuses: Statuses to keep.
            sort_by: A sortable field of :class:`Rollout`, or None for insertion order.
            sort_order: Direction; ignored without ``sort_by``.
            limit: Page size, -1 for all.
            offset: Entries to skip.
        """
        if limit == 0:  # a count; an index would cost every later change
            counts = self._counts.items()
            return [], sum(n for status, n in counts if statuses is None or status in statuses)
        name = _name(sort_by, sort_order)
        # Removed and added again, so that the least recently used index is evicted first.
        index = self._indexes.pop(name, None)
        if index is None:
            return None
        self._indexes[name] = index
        return index.page(statuses, limit, offset)

    def begin(
        self, entries: Iterable[_Entry], *, sort_by: str | None, sort_order: str
    ) -> IndexBuild:
        """Begin to build an index of all entries, given in insertion order."""
        key = _no_key if sort_by is None else sort_key(Rollout, sort_by)
        name = _name(sort_by, sort_order)
        build = IndexBuild(name, _Index(key, name[1] == "desc"), entries)
        self._builds.append(build)
        return build

    def end(self, build: IndexBuild) -> None:
        """Use the index that was built; forget it if the build was broken off."""
        self._builds.remove(build)
        if not build.is_complete:
            return
        for change in build.changes:
            build.index.replace(*change)
        self._indexes.pop(build.name, None)
        if len(self._indexes) == _KEPT:
            del self._indexes[next(iter(self._indexes))]
        self._indexes[build.name] = build.index


def _name(sort_by: str | None, sort_order: str) -> _Name:
    return (sort_by, "asc" if sort_by is None else sort_order)


def _no_key(_: Any) -> int:
    return 0
