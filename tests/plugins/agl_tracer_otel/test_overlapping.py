from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from agl_tracer_otel.overlapping import Overlapping


class Recorded:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails = False

    @contextmanager
    def make(self) -> Generator[None]:
        if self.fails:
            raise OSError("cannot enter")
        self.events.append("enter")
        yield
        self.events.append("exit")


def test_the_first_block_enters_and_the_last_one_exits():
    recorded = Recorded()
    shared = Overlapping(recorded.make)
    first, second = shared(), shared()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert shared.active
    assert recorded.events == ["enter"]
    second.__exit__(None, None, None)
    assert not shared.active
    with shared():
        assert shared.active
    assert recorded.events == ["enter", "exit"] * 2


def test_an_error_in_a_block_or_on_entering_leaves_nothing_entered():
    recorded = Recorded()
    shared = Overlapping(recorded.make)
    with pytest.raises(ValueError, match="inside"), shared():
        raise ValueError("inside")
    assert recorded.events == ["enter", "exit"]
    recorded.fails = True
    with pytest.raises(OSError, match="cannot enter"), shared():
        pass
    assert not shared.active
