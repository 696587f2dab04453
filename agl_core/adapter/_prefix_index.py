"""An index of token sequences by prefix, searched without comparing with every sequence.

In lexicographic order, sequences with a common prefix are adjacent; the sequences that share the
longest prefix with a given one are its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from agl_core.adapter._breaks import ITEM_BYTES, common_prefix

__all__ = ["PrefixIndex"]


class PrefixIndex:
    """Numbered sequences of packed tokens; see :data:`~agl_core.adapter._breaks.ITEM_BYTES`.

    A search or change takes a number of comparisons that is logarithmic in that of the sequences.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._sequences: list[bytes] = []
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, number: int, packed: bytes) -> None:
        """Add a sequence under a number that is not taken."""
        place = bisect_right(self._sequences, packed)
        self._sequences.insert(place, packed)
        self._numbers.insert(place, number)

    def remove(self, number: int, packed: bytes) -> None:
        """Remove the sequence that was added under a number."""
        place = self._numbers.index(number, bisect_left(self._sequences, packed))
        del self._sequences[place]
        del self._numbers[place]

    def longest_in(self, packed: bytes) -> int | None:
        """Return the number of the longest sequence that ``packed`` begins with.

        Of equal ones the highest number; None if there is no such sequence.
        """
        rest = packed
        while True:
            place = bisect_right(self._sequences, rest) - 1
            if place < 0:
                return None
            before = self._sequences[place]
            if packed.startswith(before):
                return self._highest_of(before, len(before), exact=True)
            # Whatever lies further back and begins ``packed`` begins what the two share.
            rest = packed[: common_prefix(before, packed) * ITEM_BYTES]

    def nearest_to(self, packed: bytes) -> int:
        """Return the number of the sequence that shares the longest beginning with ``packed``.

        Of several the highest number.

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
        """The highest number of the sequences that begin with the first ``size`` bytes."""
        beginning = packed[:size]
        first = bisect_left(self._sequences, beginning)
        if exact:
            last = bisect_right(self._sequences, beginning, first)
        else:
            last = bisect_right(self._sequences, beginning, first, key=lambda one: one[:size])
        return max(self._numbers[first:last])
