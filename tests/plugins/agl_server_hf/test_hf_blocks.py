"""The blocks of the key-value cache, against a plain list of what each place holds."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agl_server_hf.blocks import Block, BlockPool

COUNT = 7
CONTENT = st.lists(st.integers(0, 1), min_size=1, max_size=4)


class Blocks(RuleBasedStateMachine):
    """Sequences of blocks of one token; ``places`` is the tensor of the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(COUNT)
        self.places: list[tuple[int, ...] | None] = [None] * COUNT
        self.sequences: list[tuple[list[int], list[Block]]] = []

    @rule(ids=CONTENT)
    def begin(self, ids: list[int]) -> None:
        before: int | None = None
        blocks: list[Block] = []
        for number, token in enumerate(ids):
            block = self.pool.find(before, [token])
            if block is None:
                break
            assert self.places[block.index] == tuple(ids[: number + 1])
            self.pool.share(block)
            blocks.append(block)
            before = block.serial
        if len(ids) - len(blocks) > self.pool.available:
            self.pool.release(blocks)
            return
        for number in range(len(blocks), len(ids)):
            block = self.pool.take()
            assert block.users == 1
            self.places[block.index] = tuple(ids[: number + 1])
            before = self.pool.name(block, before, ids[number : number + 1])
            blocks.append(block)
        self.sequences.append((ids, blocks))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.sequences) - 1))
        _, blocks = self.sequences.pop(number)
        self.pool.release(blocks)

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        assert self.pool.find(None, [0]) is None
        assert self.pool.find(None, [1]) is None

    @rule(data=st.data())
    def arrange(self, data: st.DataObject) -> None:
        used = list(dict.fromkeys(block for _, blocks in self.sequences for block in blocks))
        order = data.draw(st.permutations(used))
        old = list(self.places)
        for before, after in self.pool.arrange(order):
            self.places[after] = old[before]
        assert [block.index for block in order] == list(range(len(order)))

    @invariant()
    def each_sequence_has_its_content(self) -> None:
        for ids, blocks in self.sequences:
            held = [self.places[block.index] for block in blocks]
            assert held == [tuple(ids[: end + 1]) for end in range(len(ids))]

    @invariant()
    def the_rest_is_available(self) -> None:
        used = {block for _, blocks in self.sequences for block in blocks}
        assert self.pool.available == COUNT - len(used)
        assert sum(block.users for block in used) == sum(len(b) for _, b in self.sequences)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_block_that_was_taken_again_is_not_found_by_what_came_after_it():
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    serial = pool.name(first, None, [1])
    pool.name(second, serial, [2])
    pool.release([first])
    pool.name(pool.take(), None, [3])  # in the place of the first block
    found = pool.find(None, [3])
    assert found is first
    assert pool.find(first.serial, [2]) is None
    with pytest.raises(IndexError, match="in use"):
        pool.take()
