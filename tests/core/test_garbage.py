"""Garbage collection while a run goes on, and after it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from weakref import ref

import pytest

from agl_core.garbage import fewer_collections, freeze_memory


@pytest.fixture(autouse=True)
def default_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, callbacks, frozen = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    monkeypatch.setattr("agl_core.garbage._collector.due", 0.0)
    monkeypatch.setattr("agl_core.garbage._STARTED_SECONDS", 0.0)
    yield
    gc.set_threshold(*before)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    if frozen:  # the tests' own; without it each later run in this process scans all of them
        gc.freeze()


class Node:
    """An object in a cycle of references."""

    def __init__(self) -> None:
        self.itself = self


def test_what_lives_is_left_out_and_visited_again_afterwards():
    seen: list[tuple[int, ...]] = []

    def fail() -> None:
        with fewer_collections():
            seen.append((*gc.get_threshold(), gc.get_freeze_count()))
            raise KeyError

    callbacks = list(gc.callbacks)
    with pytest.raises(KeyError):
        fail()
    ((*threshold, frozen),) = seen
    assert threshold == [10_000, 10, 10]
    assert frozen > 1000
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == callbacks


def test_what_comes_later_is_scanned():
    with fewer_collections():
        later = Node()
        gc.collect()
        kept = ref(later)
        del later
        gc.collect()
        assert kept() is None


def test_many_short_runs_collect_seldom(monkeypatch: pytest.MonkeyPatch):
    garbage = ref(Node())
    with fewer_collections():
        assert garbage() is None  # a model of the run before, say

    garbage = ref(Node())
    for _ in range(100):
        with fewer_collections():
            assert gc.get_freeze_count() == 0
            assert gc.get_threshold() == (10_000, 10, 10)
    assert garbage() is not None
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 100)
    with fewer_collections():
        assert garbage() is None


def test_a_program_that_has_just_started_leaves_out_what_lives_without_a_collection(
    monkeypatch: pytest.MonkeyPatch,
):
    garbage = ref(Node())
    monkeypatch.setattr("agl_core.garbage._STARTED_SECONDS", time.process_time() + 100)
    with fewer_collections():
        assert garbage() is not None
        assert gc.get_freeze_count() > 1000
    monkeypatch.setattr("agl_core.garbage._STARTED_SECONDS", 0.0)
    with fewer_collections():
        assert garbage() is None


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


def test_what_a_server_keeps_is_not_scanned_again_and_again():
    longest = began = 0.0

    def measure(phase: str, _: dict[str, int]) -> None:
        nonlocal longest, began
        if phase == "start":
            began = time.thread_time()
        else:
            longest = max(longest, time.thread_time() - began)

    freeze_memory()
    gc.callbacks.append(measure)
    kept = [[each] for each in range(2_000_000)]
    assert gc.get_freeze_count() > len(kept) / 2
    assert longest < 0.1  # 0.2 s, and more with each collection
    del kept
    assert gc.get_freeze_count() < 1_000_000  # they end with their last reference
