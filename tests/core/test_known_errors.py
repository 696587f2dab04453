from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agl_core.known_errors import ERROR_TABLE, KnownErrors


def raised(fail: Callable[[], Any]) -> BaseException:
    try:
        fail()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def divide() -> float:
    return 1 / 0


def look_up() -> str:
    return {}["prompt"]


def test_errors_of_the_same_type_and_traceback_are_counted_together():
    errors = KnownErrors()
    first = [errors.count(raised(divide)) for _ in range(2)]
    assert first == [1, 2]
    assert errors.count(raised(look_up)) == 1
    assert errors.count(raised(lambda: divide())) == 1, "called from another place"
    assert errors.count(raised(divide)) == 3
    assert errors.count(ValueError("never raised")) == 1


def test_processes_with_one_table_count_together():
    table: Any = multiprocessing.get_context("fork").Array("Q", ERROR_TABLE)
    ours, theirs = (KnownErrors(table.get_obj(), table.get_lock()) for _ in range(2))
    assert ours.count(raised(divide)) == 1
    assert theirs.count(raised(divide)) == 2


def test_a_full_table_is_cleared():
    errors = KnownErrors([0] * 4)
    kinds: list[Callable[[], Any]] = [divide, look_up, lambda: [].pop()]
    assert [errors.count(raised(kind)) for kind in kinds] == [1, 1, 1]
    assert [errors.count(raised(kind)) for kind in reversed(kinds)] == [2, 1, 1]


def test_a_copy_is_empty():
    errors = KnownErrors()
    errors.count(raised(divide))
    assert pickle.loads(pickle.dumps(errors)).count(raised(divide)) == 1


def test_a_lock_that_a_killed_process_holds_does_not_stop_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agl_core.known_errors._LOCK_SECONDS", 0.01)
    lock = threading.Lock()
    with lock:
        assert KnownErrors(lock=lock).count(raised(divide)) == 1
