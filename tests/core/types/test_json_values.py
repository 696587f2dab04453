"""Tasks and metadata of any Python type, as JSON values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from agl_core.errors import InvalidArgumentError
from agl_core.types import as_json_value, task_digest

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_json_values_stay_and_are_copied(value: Any) -> None:
    made = as_json_value(value, "input")
    assert made == value
    assert json.dumps(made) == json.dumps(value)
    assert not isinstance(value, (list, dict)) or made is not value


@given(st.dictionaries(st.integers() | st.booleans() | st.none(), st.integers()))
def test_keys_become_what_json_writes(value: dict[Any, Any]) -> None:
    assert as_json_value(value, "input") == json.loads(json.dumps(value))


class Tensor:
    """A value of a library that is not installed, with one of the methods such libraries have."""

    shape = ()

    def __init__(self, method: str, value: Any) -> None:
        setattr(self, method, lambda: value)


class Task(BaseModel):
    score: float


@dataclass
class Observation:
    position: Any
    name: str = "cart"


class Point(NamedTuple):
    x: float
    y: Any


class NAType:
    """Has the name of the type of pandas' NA."""


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array(3), 3),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([np.nan, 1.0]), [None, 1.0]),
        (np.str_("a"), "a"),
        ({np.int64(3): np.float64(1.0)}, {"3": 1.0}),
        (Decimal("1.5"), 1.5),
        (Decimal("NaN"), None),
        (Tensor("tolist", 1.5), 1.5),
        (Tensor("numpy", np.array([1, 2])), [1, 2]),
        (Tensor("item", True), True),
        (Task(score=float("inf")), {"score": None}),
        (NAType(), None),
        (Point(1, np.float32(0.5)), [1, 0.5]),
        (Observation(np.array([1.0, np.nan])), {"position": [1.0, None], "name": "cart"}),
        ({"o": [Observation(np.int64(1))]}, {"o": [{"position": 1, "name": "cart"}]}),
    ],
)
def test_numbers_of_libraries_become_pythons(value: Any, kept: Any) -> None:
    made = as_json_value({"value": value}, "input")["value"]
    assert made == kept
    assert type(made) is type(kept)
    assert json.dumps(made) == json.dumps(kept)


def test_an_object_without_a_json_form_is_copied() -> None:
    given_object = SimpleNamespace(list=[1])
    made = as_json_value({"it": given_object}, "input")["it"]
    assert made == given_object
    assert made.list is not given_object.list


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArgumentError, match="or contains itself"):
        as_json_value(loop, "input")


def test_a_task_has_the_digest_of_what_is_stored() -> None:
    task = {1: Decimal("0.5"), "at": np.array([1.0])}
    assert task_digest(task) == task_digest({"1": 0.5, "at": [1.0]})


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_has_one_order_in_every_process(kind: Any) -> None:
    words = [f"word {number}" for number in range(50)]
    assert as_json_value({"tags": kind(words)}, "input") == {"tags": sorted(words, key=repr)}
