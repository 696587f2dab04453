"""The key-value cache: allocated once, in blocks that sequences take, share and give back.

:mod:`agl_server_hf.padded` has one for models whose attention cannot read blocks.
"""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from agl_server_hf.attention import BlockStep, Chunk, Layer, Scan
from agl_server_hf.blocks import Block, BlockPool

__all__ = ["BLOCK", "BlockCache", "Cache", "Step", "Table", "token_bytes"]

BLOCK: Final = 32
"""Tokens per block. Half of it is wasted per sequence; matrix products of half the size cost more
than they save on a CPU."""
_WIDTHS: Final = 8
"""Blocks with 1, up to 8, up to 64, … sequences are read together, padded to the widest."""
_SCATTERED: Final = 16
"""Number of blocks from which on it pays to move blocks that do not lie close together."""


@dataclass(eq=False, slots=True)
class Table:
    """The blocks of a sequence.

    Attributes:
        known: Serial of the last block whose content the pool knows; before the first one, what
            keys and values depend on besides the tokens: the adapter's name, or None.
        blocks: In the order of the tokens.
        length: Number of tokens whose keys and values are stored.
        named: Number of blocks whose content the pool knows.
    """

    known: Hashable
    blocks: list[Block] = field(default_factory=list[Block])
    length: int = 0
    named: int = 0


def token_bytes(layers: Iterable[tuple[Tensor, Tensor]]) -> int:
    """Return the bytes of the keys and values of each layer."""
    return sum(part.numel() * part.element_size() for pair in layers for part in pair)


class Step(Protocol):
    """A forward pass of sequences."""

    def run(
        self, model: Any, tokens: Tensor, names: Sequence[str | None], rows: Sequence[int]
    ) -> Tensor:
        """Run the model and store the keys and values.

        Args:
            model: The model.
            tokens: Tokens of the running sequences, then those of the chunks, int64 ``[T]``.
            names: Each token's adapter; None is the model itself.
            rows: The running sequences' tokens and the last tokens of some chunks, in order.

        Returns:
            The logits of these rows, float32 ``[len(rows), V]``.
        """
        ...

    def advance(self) -> None:
        """Go on with the next token of the same running sequences, in the same blocks."""
        ...


class Cache(ABC):
    """Keeps account of the blocks of all sequences. Not thread-safe.

    Args:
        tokens: Number of tokens that the cache can hold.
        device: Where it is.

    Raises:
        ValueError: There is no room for one block.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        count = tokens // BLOCK
        if not count:
            raise ValueError(f"the key-value cache needs room for {BLOCK} tokens, not {tokens}")
        self.tokens = count * BLOCK
        self._device = device
        self._pool = BlockPool(count)

    def open(self, ids: Sequence[int], adapter: str | None) -> Table:
        """Return a table with the known blocks of the tokens' beginning; the last token is open."""
        table = Table(adapter)
        for first in range(0, len(ids) - BLOCK, BLOCK):
            block = self._pool.find(table.known, ids[first : first + BLOCK])
            if block is None:
                break
            self._pool.share(block)
            table.blocks.append(block)
            table.known = block.serial
        table.named = len(table.blocks)
        table.length = table.named * BLOCK
        return table

    def grow(self, table: Table, length: int) -> bool:
        """Make room for so many tokens; return False and change nothing if there is none."""
        missing = -(-length // BLOCK) - len(table.blocks)
        if missing > self._pool.available:
            return False
        table.blocks += [self._pool.take() for _ in range(missing)]
        return True

    def fork(self, table: Table) -> Table | None:
        """Return a table with the same content, or None if there is no room for its last block."""
        full, rest = divmod(table.length, BLOCK)
        if rest and not self._pool.available:
            return None
        copy = Table(table.known, table.blocks[:full], table.length, table.named)
        for block in copy.blocks:
            self._pool.share(block)
        if rest:
            copy.blocks.append(self._pool.take())
            self._copy(table.blocks[full], copy.blocks[full])
        return copy

    def name(self, table: Table, ids: Sequence[int]) -> None:
        """Let later sequences find the full blocks of these tokens, the first of the sequence."""
        for number in range(table.named, len(ids) // BLOCK):
            part = ids[number * BLOCK : (number + 1) * BLOCK]
            table.known = self._pool.name(table.blocks[number], table.known, part)
            table.named = number + 1

    def close(self, table: Table) -> None:
        """Give the blocks back; known blocks stay until another sequence needs their room."""
        self._pool.release(table.blocks)
        table.blocks = []

    def forget(self) -> None:
        """Drop what is known: the model has changed."""
        self._pool.forget()

    @abstractmethod
    def step(self, running: Sequence[Table], chunks: Sequence[tuple[Table, int]]) -> Step:
        """Return the forward pass of some sequences.

        Args:
            running: Sequences that add one token each; there is room for it.
            chunks: Sequences that add so many tokens each; there is room for them.
        """

    @abstractmethod
    def _copy(self, old: Block, new: Block) -> None:
        """Copy the content of a block."""


class BlockCache(Cache):
    """Keys and values in blocks, for models whose attention is that of :mod:`.attention`.

    Args:
        layers: A key ``[1, heads, D]`` and a value ``[1, heads, E]`` of each layer.
        tokens: Number of tokens that the cache can hold.

    Raises:
        ValueError: There is no room for one block.
    """

    def __init__(self, layers: Mapping[int, tuple[Tensor, Tensor]], tokens: int) -> None:
        super().__init__(tokens, layers[0][0].device)
        self._layers = [
            Layer(
                *(
                    # Zeros: what is stored nowhere must not become a NaN that a weight of 0 keeps.
                    _zeros(part, (part.shape[1], len(self._pool), BLOCK, part.shape[2]))
                    for part in layers[number]
                )
            )
            for number in range(len(layers))
        ]

    def step(self, running: Sequence[Table], chunks: Sequence[tuple[Table, int]]) -> BlockStep:
        users: dict[Block, list[int]] = {}
        for row, table in enumerate(running):
            for block in table.blocks:
                users.setdefault(block, []).append(row)
        classes: dict[int, list[Block]] = {}
        for block, rows in users.items():
            width = math.ceil(math.log(len(rows), _WIDTHS)) if len(rows) > 1 else 0
            classes.setdefault(width, []).append(block)
        ordered = [classes[width] for width in sorted(classes, reverse=True)]
        if len(running) == 1:
            # PyTorch's own attention reads blocks that lie in the order of the tokens.
            first_place = running[0].blocks[0].index
            scattered = any(b.index != first_place + n for n, b in enumerate(running[0].blocks))
        else:
            for blocks in ordered:
                blocks.sort(key=lambda block: block.index)
            scattered = any(len(b) >= _SCATTERED and not _is_dense(b) for b in ordered)
        if scattered:
            self._move(self._pool.arrange(block for blocks in ordered for block in blocks))

        scans: list[Scan] = []
        pair_of: dict[tuple[int, Block], int] = {}
        first = 0
        for blocks in ordered:
            scan, pairs = self._scan(blocks, users, first)
            scans.append(scan)
            pair_of.update(pairs)
            first += scan.count * scan.width
        widest = max((len(table.blocks) for table in running), default=0)
        pairs_of_row = [[pair_of[row, b] for b in t.blocks] for row, t in enumerate(running)]
        places = [0] * first
        for row, pairs in enumerate(pairs_of_row):
            for number, pair in enumerate(pairs):
                places[pair] = row * widest + number
        begins: list[int] = []
        end = 0
        for pairs in pairs_of_row:
            begins.append(end)
            end += len(pairs)
        padded = [[*pairs, *([0] * (widest - len(pairs)))] for pairs in pairs_of_row]

        spans = [(table, 1) for table in running] + list(chunks)
        at = [
            (table.blocks[position // BLOCK].index, position)
            for table, count in spans
            for position in range(table.length, table.length + count)
        ]
        return BlockStep(
            self._layers,
            blocks=self._indices([block for block, _ in at]),
            positions=self._indices([position for _, position in at]),
            scans=scans,
            pairs=self._indices(padded).view(len(running), widest),
            places=self._indices(places),
            bags=(
                self._indices([pair for pairs in pairs_of_row for pair in pairs]),
                self._indices(begins),
            ),
            alone=running[0].length if pairs_of_row == [list(range(first))] else None,
            chunks=self._chunks(len(running), chunks),
        )

    def _scan(
        self, blocks: Sequence[Block], users: Mapping[Block, Sequence[int]], first: int
    ) -> tuple[Scan, dict[tuple[int, Block], int]]:
        """Return a scan of blocks in the order of their places, and the number of each pair."""
        width = max(len(users[block]) for block in blocks)
        low, high = blocks[0].index, blocks[-1].index + 1
        dense = _is_dense(blocks)
        count = high - low if dense else len(blocks)
        owners = [0] * (count * width)
        pairs: dict[tuple[int, Block], int] = {}
        for number, block in enumerate(blocks):
            at = (block.index - low if dense else number) * width
            for slot, row in enumerate(users[block]):
                owners[at + slot] = row
                pairs[row, block] = first + at + slot
        where = slice(low, high) if dense else self._indices([block.index for block in blocks])
        return Scan(where, count, width, self._indices(owners)), pairs

    def _chunks(self, first: int, chunks: Sequence[tuple[Table, int]]) -> list[Chunk]:
        """Return the chunks, those of one shape together; ``first`` is the row of their tokens."""
        alike: dict[tuple[int, int], list[tuple[int, Table]]] = {}
        for table, count in chunks:
            blocks = -(-(table.length + count) // BLOCK)
            alike.setdefault((count, blocks), []).append((first, table))
            first += count
        return [
            Chunk(
                self._indices([list(range(row, row + count)) for row, _ in group]),
                self._indices([[b.index for b in table.blocks[:blocks]] for _, table in group]),
                self._indices([list(range(t.length, t.length + count)) for _, t in group]),
            )
            for (count, blocks), group in alike.items()
        ]

    def _indices(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._device)

    def _copy(self, old: Block, new: Block) -> None:
        self._move([(old.index, new.index)])

    def _move(self, moves: Iterable[tuple[int, int]]) -> None:
        moves = list(moves)
        old, new = (self._indices([move[side] for move in moves]) for side in (0, 1))
        for layer in self._layers:
            for part in (layer.keys, layer.values):
                part[:, new] = part[:, old]


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return zeros of this type and device; on a CPU, memory that is used as it fills."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    # PyTorch would write its zeros, and so use all of the memory at once.
    size = math.prod(shape) * like.element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)


def _is_dense(blocks: Sequence[Block]) -> bool:
    """Return whether to read a range of the cache rather than to copy these blocks out of it."""
    return blocks[-1].index - blocks[0].index < 1.5 * len(blocks)
