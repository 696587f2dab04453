"""A list that stays sorted under many insertions and removals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_CHUNK: Final = 512
"""Moving so many entries for an insertion takes less than finding their place."""


class SortedList(Generic[T]):
    """Items in ascending order, in chunks: adding and removing move one chunk, not the whole list.

    Items must be comparable with each other and all different.
    """

    __slots__ = ("_chunks", "_firsts", "_size")

    def __init__(self, items: Iterable[T] = ()) -> None:
        ordered: list[Any] = sorted(items)  # pyright: ignore[reportArgumentType]
        self._size = len(ordered)
        self._chunks = [ordered[at : at + _CHUNK] for at in range(0, len(ordered), _CHUNK)]
        self._firsts = [chunk[0] for chunk in self._chunks]

    def __len__(self) -> int:
        return self._size

    def add(self, item: T) -> None:
        """Insert an item; appending at the end is the fast case."""
        self._size += 1
        if not self._chunks:
            self._chunks.append([item])
            self._firsts.append(item)
            return
        at = max(bisect_right(self._firsts, item) - 1, 0)
        chunk = self._chunks[at]
        insort(chunk, item)
        self._firsts[at] = chunk[0]
        if len(chunk) > 2 * _CHUNK:
            upper = chunk[_CHUNK:]
            del chunk[_CHUNK:]
            self._chunks.insert(at + 1, upper)
            self._firsts.insert(at + 1, upper[0])

    def remove(self, item: T) -> None:
        """Remove an item.

        Raises:
            ValueError: It is not in the list.
        """
        at = bisect_right(self._firsts, item) - 1
        chunk = self._chunks[at] if at >= 0 else []
        place = bisect_left(chunk, item)
        if place == len(chunk) or chunk[place] != item:
            raise ValueError(f"{item!r} is not in the list")
        del chunk[place]
        self._size -= 1
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at]
            del self._firsts[at]

    def iterate(self, offset: int = 0, *, descending: bool = False) -> Iterator[T]:
        """Yield the items in ascending or descending order, without the first ``offset``."""
        for chunk in reversed(self._chunks) if descending else self._chunks:
            if offset >= len(chunk):
                offset -= len(chunk)
                continue
            ordered = chunk[::-1] if descending else chunk
            yield from ordered[offset:] if offset else ordered
            offset = 0
