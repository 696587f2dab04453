"""The blocks of the key-value cache: who uses them, and which hold content that may be reused.

Pure bookkeeping; :mod:`agl_server_hf.cache` holds the tensors. A full block is known by its tokens
and the block before it, so that a prompt finds the blocks of an equal beginning (Kwon et al.,
"Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023).
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

__all__ = ["Block", "BlockPool"]


class Block:
    """Room for the keys and values of some tokens.

    Attributes:
        index: Place in the cache's tensors.
        users: Number of sequences that read it.
        key: Its content, if a later prompt may find it: the serial of the content before it, and
            its tokens. Otherwise None.
        serial: Unique number of that content.
    """

    __slots__ = ("index", "key", "serial", "users")

    def __init__(self, index: int) -> None:
        self.index = index
        self.users = 0
        self.key: Hashable = None
        self.serial = 0


class BlockPool:
    """A fixed number of blocks. Not thread-safe.

    A released block keeps its known content while free blocks are left; after that, the block that
    was released first is taken first.

    Args:
        count: Number of blocks.
    """

    def __init__(self, count: int) -> None:
        self._blocks = [Block(index) for index in range(count)]
        # A heap gives the lowest place first, so that the used blocks stay close together.
        self._free: list[int] = list(range(count))
        self._kept: OrderedDict[Block, None] = OrderedDict()
        self._known: dict[Hashable, Block] = {}
        self._serials = itertools.count(1)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def available(self) -> int:
        """Number of blocks that no sequence uses."""
        return len(self._free) + len(self._kept)

    def take(self) -> Block:
        """Return a block for one user; its content is undefined.

        Raises:
            IndexError: All blocks are in use.
        """
        if self._free:
            block = self._blocks[heapq.heappop(self._free)]
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
            self._forget(block)
        else:
            raise IndexError("all blocks are in use")
        block.users = 1
        return block

    def share(self, block: Block) -> None:
        """Add a user."""
        if not block.users:
            del self._kept[block]
        block.users += 1

    def release(self, blocks: Sequence[Block]) -> None:
        """Take one user from each block of a sequence."""
        # The last block first, so that it is taken first: it is useless without those before it.
        for block in reversed(blocks):
            block.users -= 1
            if block.users:
                continue
            if block.key is None:
                heapq.heappush(self._free, block.index)
            else:
                self._kept[block] = None

    def name(self, block: Block, before: Hashable, ids: Sequence[int]) -> int:
        """Make a full block known by its content, unless another block is known by it.

        Args:
            block: The block.
            before: Serial of the content before it; of the first block of a sequence, what the
                content depends on besides the tokens, such as the adapter's name.
            ids: The tokens of the block.

        Returns:
            The serial of the content.
        """
        key = (before, tuple(ids))
        known = self._known.setdefault(key, block)
        if known is block and block.key != key:
            block.key, block.serial = key, next(self._serials)
        return known.serial

    def find(self, before: Hashable, ids: Sequence[int]) -> Block | None:
        """Return the known block of this content; the arguments are those of :meth:`name`."""
        return self._known.get((before, tuple(ids)))

    def forget(self) -> None:
        """Drop all known content, such as after a change of the weights."""
        for block in list(self._known.values()):
            self._forget(block)
        for block in self._kept:
            heapq.heappush(self._free, block.index)
        self._kept.clear()

    def arrange(self, used: Iterable[Block]) -> list[tuple[int, int]]:
        """Give the blocks the first places, in this order.

        Args:
            used: Blocks in use.

        Returns:
            Old and new place of each block whose content must move.
        """
        moves: list[tuple[int, int]] = []
        old = {block: block.index for block in self._blocks}
        for place, block in enumerate(used):
            other = self._blocks[place]
            if other is not block:
                self._blocks[block.index] = other
                other.index, block.index = block.index, place
                self._blocks[place] = block
        for block, before in old.items():
            if block.index != before and (block.users or block.key is not None):
                moves.append((before, block.index))
        # A sorted list is a heap.
        self._free = [b.index for b in self._blocks if not b.users and b.key is None]
        return moves

    def _forget(self, block: Block) -> None:
        del self._known[block.key]
        block.key = None
