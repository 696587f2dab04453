"""An index of token sequences by prefix, searched without comparing with every sequence.

In lexicographic order, sequences with a common prefix are adjacent; the sequences that share the
longest prefix with a given one are its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

__all__ = ["ITEM_BYTES", "PrefixIndex", "common_prefix"]

ITEM_BYTES: Final = 8
"""Bytes per token in packed token ids (signed 64-bit integers, machine byte order)."""


def common_prefix(first: bytes, second: bytes) -> int:
    """Return the length, in tokens, of the common prefix of two packed sequences."""
    # A binary search over slices: comparing bytes runs in C, a loop over tokens does not.
    low, high = 0, min(len(first), len(second)) // ITEM_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * ITEM_BYTES, middle * ITEM_BYTES
        if first[start:end] == second[start:end]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixIndex:
    """Numbered sequences of packed tokens; see :data:`ITEM_BYTES`.

    A search or a change needs O(log n) comparisons of sequences.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._sequences: list[bytes] = []
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, number: int, packed: bytes) -> None:
        """Add a sequence under an unused number."""
        place = bisect_right(self._sequences, packed)
        self._sequences.insert(place, packed)
        self._numbers.insert(place, number)

    def remove(self, number: int, packed: bytes) -> None:
        """Remove the sequence that was added under a number."""
        place = self._numbers.index(number, bisect_left(self._sequences, packed))
        del self._sequences[place]
        del self._numbers[place]

    def longest_in(self, packed: bytes) -> int | None:
        """Return the number of the longest sequence that is a prefix of ``packed``.

        Of equal sequences, the highest number is returned; None if no sequence is a prefix.
        """
        rest = packed
        while True:
            place = bisect_right(self._sequences, rest) - 1
            if place < 0:
                return None
            before = self._sequences[place]
            if packed.startswith(before):
                return self._highest_of(before, len(before), exact=True)
            # A shorter prefix of `packed` sorts before `before`, and is therefore also a prefix of
            # what the two have in common.
            rest = packed[: common_prefix(before, packed) * ITEM_BYTES]

    def nearest_to(self, packed: bytes) -> int:
        """Return the number of the sequence with the longest common prefix with ``packed``.

        Of several such sequences, the highest number is returned.

        Raises:
            ValueError: There are no sequences.
        """
        if not self._sequences:
            raise ValueError("there are no sequences")
        place = bisect_left(self._sequences, packed)
        neighbours = self._sequences[max(place - 1, 0) : place + 1]
        shared = max(common_prefix(sequence, packed) for sequence in neighbours)
        return self._highest_of(packed, shared * ITEM_BYTES)

    def _highest_of(self, packed: bytes, size: int, *, exact: bool = False) -> int:
        """Return the highest number of the sequences that begin with ``packed[:size]``."""
        beginning = packed[:size]
        first = bisect_left(self._sequences, beginning)
        if exact:
            last = bisect_right(self._sequences, beginning, first)
        else:
            last = bisect_right(self._sequences, beginning, first, key=lambda one: one[:size])
        return max(self._numbers[first:last])
