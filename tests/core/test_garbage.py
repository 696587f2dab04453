"""Garbage collection while a run goes on, and after it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from agl_core.garbage import fewer_collections


@pytest.fixture(autouse=True)
def default_collection() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*before)


def test_what_lives_is_left_out_and_visited_again_afterwards():
    seen: list[tuple[int, ...]] = []

    def fail() -> None:
        with fewer_collections():
            seen.append((*gc.get_threshold(), gc.get_freeze_count()))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    ((*threshold, frozen),) = seen
    assert threshold == [10_000, 10, 10]
    assert frozen > 1000
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


def test_a_program_that_freezes_or_collects_rarely_keeps_what_it_set():
    gc.freeze()
    with fewer_collections():
        assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.set_threshold(50_000, 10, 10)
    with fewer_collections():
        assert gc.get_freeze_count() == 0
    gc.set_threshold(700, 10, 10)
    gc.disable()
    try:
        with fewer_collections():
            assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
