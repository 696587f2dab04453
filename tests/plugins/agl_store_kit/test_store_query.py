"""Filters, sort orders and pages."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from agl_core.errors import InvalidArgumentError
from agl_core.types import Attempt, ResourcesUpdate, Rollout, Span, Worker
from agl_store_kit import WorkerQuery, run_query
from agl_store_kit.filters import (
    check_page,
    compile_filter,
    cut,
    filter_options,
    sort_key,
    sortable_fields,
)


def record(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def matching(options: dict[str, Any], *records: Any) -> list[bool]:
    test = compile_filter(options)
    return [True if test is None else test(item) for item in records]


ANN = record(name="Ann", age=3, tags=["a", "b"], mail=None)
BOB = record(name="bob", age=None, tags=[], mail="bob@x")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [True, True]),
        ({"_aggregate": "or"}, [True, True]),
        ({"name": {}}, [True, True]),
        ({"name": {"exact": None}}, [True, True]),
        ({"name": {"exact": "Ann"}}, [True, False]),
        ({"name": {"within": ["bob", "x"]}}, [False, True]),
        ({"name": {"within": []}}, [False, False]),
        ({"name": {"within": 7}}, [False, False]),
        ({"tags": {"within": [["a", "b"]]}}, [True, False]),
        ({"name": {"contains": "n"}}, [True, False]),
        ({"name": {"contains": "a"}}, [False, False]),
        ({"name": {"contains": 1}}, [False, False]),
        ({"mail": {"contains": "b"}}, [False, True]),
        ({"tags": {"contains": "a"}}, [True, False]),
        ({"age": {"contains": "3"}}, [False, False]),
        ({"name": {"exact": "Ann", "contains": "b"}}, [False, False]),
        ({"name": {"exact": "Ann", "contains": "b"}, "_aggregate": "or"}, [True, True]),
        ({"name": {"exact": "Ann"}, "age": {"exact": 4}, "_aggregate": "or"}, [True, False]),
        ({"_must": {"age": {"exact": 3}}, "_aggregate": "or"}, [True, False]),
        ({"_must": {"age": {"exact": 3}}, "name": {"exact": "bob"}}, [False, False]),
        (
            {
                "_must": [{"age": {"exact": 3}}, {"name": {"contains": "A"}}],
                "name": {"exact": "x"},
                "mail": {"exact": "y"},
                "_aggregate": "or",
            },
            [False, False],
        ),
    ],
)
def test_filters(options: dict[str, Any], expected: list[bool]):
    assert matching(options, ANN, BOB) == expected


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"_aggregate": "xor"}, InvalidArgumentError, "_aggregate must be 'and' or 'or'"),
        ({"name": {"like": "x"}}, InvalidArgumentError, "unknown operator 'like'"),
        ({"name": "x"}, TypeError, "filter of 'name'"),
        ({"_must": ["x"]}, TypeError, "_must holds mappings"),
        (
            {"_must": [{"name": {"exact": 1}}, {"name": {"exact": 2}}]},
            InvalidArgumentError,
            "'exact' twice for 'name'",
        ),
    ],
)
def test_a_wrong_filter_is_an_error(options: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        compile_filter(options)


def test_arguments_become_options():
    options = filter_options(
        logic="or",
        must={"rollout_id": "r"},
        name=None,
        trace_id="t",
        name_contains="x",
        status_in=[],
    )
    assert options == {
        "_aggregate": "or",
        "_must": {"rollout_id": {"exact": "r"}},
        "trace_id": {"exact": "t"},
        "name": {"contains": "x"},
        "status": {"within": []},
    }
    with pytest.raises(InvalidArgumentError, match="filter_logic must be"):
        filter_options(logic="nor")


def test_sortable_fields():
    assert dict(sortable_fields(Rollout)) == {
        "rollout_id": "",
        "start_time": math.inf,
        "end_time": math.inf,
        "mode": "",
        "resources_id": "",
        "status": "",
        "reward": -math.inf,
        "duration": -math.inf,
    }
    assert dict(sortable_fields(Attempt)) == {
        "rollout_id": "",
        "attempt_id": "",
        "sequence_id": 0,
        "start_time": math.inf,
        "end_time": math.inf,
        "status": "",
        "worker_id": "",
        "last_heartbeat_time": math.inf,
    }
    assert set(sortable_fields(ResourcesUpdate)) == {
        *("resources_id", "create_time", "update_time", "version")
    }
    assert "heartbeat_stats" not in sortable_fields(Worker)
    assert list(sortable_fields(Span)) == [
        *("sequence_id", "start_time", "end_time", "name", "span_id"),
        *("trace_id", "parent_id", "rollout_id", "attempt_id"),
    ]


def test_an_unknown_sort_field_is_refused_with_those_allowed():
    with pytest.raises(InvalidArgumentError, match=r"'input'; sort by one of: rollout_id, start_t"):
        sort_key(Rollout, "input")


def worker(name: str, **fields: Any) -> Worker:
    return Worker(worker_id=name, **fields)


def page(by: str | None, order: str = "asc", limit: int = -1, offset: int = 0) -> Any:
    workers = [
        worker("b", last_busy_time=2.0),
        worker("a"),
        worker("c", last_busy_time=1.0, current_rollout_id="r"),
        worker("d", last_busy_time=2.0),
    ]
    query = WorkerQuery(sort_by=by, sort_order=order, limit=limit, offset=offset)
    found, total = run_query(workers, query)
    assert total == 4
    return "".join(item.worker_id for item in found)


@pytest.mark.parametrize(
    ("by", "order", "expected"),
    [
        (None, "asc", "bacd"),
        (None, "desc", "bacd"),
        ("worker_id", "asc", "abcd"),
        ("worker_id", "desc", "dcba"),
        ("last_busy_time", "asc", "cbda"),
        ("last_busy_time", "desc", "abdc"),
        ("current_rollout_id", "asc", "badc"),
        ("current_rollout_id", "desc", "cbad"),
    ],
)
def test_sorting_is_stable_and_puts_missing_values_in_their_place(
    by: Any, order: str, expected: str
):
    assert page(by, order) == expected


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [(-1, 1, "bcd"), (2, 0, "ab"), (2, 3, "d"), (2, 9, ""), (0, 0, ""), (-1, 9, "")],
)
def test_pages(limit: int, offset: int, expected: str):
    assert page("worker_id", limit=limit, offset=offset) == expected
    assert "".join(cut("abcd", limit, offset)) == expected


@pytest.mark.parametrize("arguments", [(-2, 0), (0, -1), (0, 0, "down")])
def test_a_wrong_page_is_an_error(arguments: Any):
    with pytest.raises(InvalidArgumentError):
        check_page(*arguments)
