"""Copies of the requests and responses of clients."""

from __future__ import annotations

import dataclasses
import enum
import io
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from agl_tracer_otel.payload import to_jsonable


class Omit:
    """The placeholder of client libraries for an omitted parameter."""


class Model(BaseModel):
    given: int
    default: int = 2


class Opaque:
    def __str__(self) -> str:
        return "opaque"


class State(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    client: Opaque
    image: bytes = b""
    inner: Model | None = None
    default: int = 2


class Kind(enum.StrEnum):
    ONE = "one"


@dataclasses.dataclass
class Pair:
    left: int
    right: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (1.5, 1.5),
        ({"a": Omit(), "b": [Omit]}, {"b": [str(Omit)]}),
        ({3: (1, 2), "k": {"x"}}, {"3": [1, 2], "k": ["x"]}),
        (Pair(1, Pair(2, b"b")), {"left": 1, "right": {"left": 2, "right": "b'b'"}}),
        ({"message": Model(given=1)}, {"message": {"given": 1}}),
        ([Kind.ONE, True], ["one", True]),
        (deque("ab"), ["a", "b"]),
        ({"k": 1}.values(), [1]),
    ],
)
def test_plain_values_become_json(value: Any, expected: Any):
    assert to_jsonable(value) == expected


def test_later_changes_of_the_agent_do_not_change_the_copy():
    request: Any = {"messages": [{"role": "user", "content": [{"text": "a"}]}]}
    copy = to_jsonable(request)
    request["messages"][0]["content"][0]["text"] = "b"
    request["messages"].append("c")
    assert copy == {"messages": [{"role": "user", "content": [{"text": "a"}]}]}


def test_fields_of_a_model_without_a_json_form_become_text():
    assert to_jsonable(State(client=Opaque(), inner=Model(given=1))) == {
        "client": "opaque",
        "inner": {"given": 1},
    }
    assert to_jsonable([State(client=Opaque(), image=b"\xff")]) == [
        {"client": "opaque", "image": r"b'\xff'"}
    ]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: (part for part in "ab"), ["a", "b"]),
        (lambda: iter(["a", "b"]), ["a", "b"]),
        (lambda: map(str, "ab"), ["a", "b"]),
        (lambda: io.StringIO("a\nb\n"), ["a\n", "b\n"]),
    ],
)
def test_an_iterator_is_not_read(make: Callable[[], Any], expected: list[str]):
    iterator = make()
    assert to_jsonable({"k": [iterator]}) == {"k": [str(iterator)]}
    assert list(iterator) == expected
