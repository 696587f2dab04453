"""``operation(record=True)``, ``now`` and ``random``: recorded, and answered in a replay."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field

import agl_core as agl
from agl_core import semconv
from agl_core.emitter import answering_operations
from agl_core.emitter._recorded import RecordedError
from agl_core.errors import AglError
from agl_tracer_otel import OtelTracer


class Hit(BaseModel, extra="allow"):
    title: str
    score: float = Field(alias="_score")


@dataclass
class Page:
    hits: list[Hit]
    at: tuple[int, int]


class Odd(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


class Shelf:
    """Owner of operations; counts their runs."""

    def __init__(self) -> None:
        self.runs = 0

    @agl.operation(record=True)
    def search(self, query: str, *, tags: frozenset[str] = frozenset()) -> Page:
        self.runs += 1
        return Page([Hit(title=query, _score=0.5)], (self.runs, len(tags)))

    @agl.operation(record=True, name="fetch")
    async def fetch(self, url: str, api_key: str = "") -> bytes:
        self.runs += 1
        return url.encode()

    @agl.operation(record=True)
    def fail(self, kind: type[Exception], *args: str) -> None:
        raise kind(*args)


async def traced(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """Run a function within a trace; return the records of its operations."""
    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context("test"):
            found = run()
            if hasattr(found, "__await__"):
                await found
        spans = tracer.get_last_trace()
    attributes = [dict(span.attributes or {}) for span in spans]
    texts = [one[semconv.RECORDED_OPERATION] for one in attributes if "canary" not in str(one)]
    assert len(texts) == len(spans), "no span holds a key"
    return [json.loads(str(text)) for text in texts]


def replayer(*records: dict[str, Any]) -> tuple[list[Any], Callable[[str, Any], Any]]:
    """Return what was asked, and a function that answers with records in their order."""
    asked: list[Any] = []
    left = list(records)

    def answer(name: str, arguments: Any) -> Any:
        asked.append((name, arguments))
        return left.pop(0) if left else None

    return asked, answer


async def test_a_result_is_recorded_and_comes_back_as_its_type():
    shelf = Shelf()
    (record,) = await traced(lambda: shelf.search("x", tags=frozenset({"b", "a"})))
    assert record == {
        "arguments": {"query": "x", "tags": ["a", "b"]},
        "result": {"hits": [{"title": "x", "_score": 0.5}], "at": [1, 2]},
    }
    results: list[Page] = []
    asked, answer = replayer(record)
    with answering_operations(answer):
        (again,) = await traced(lambda: results.append(shelf.search("y")))
    assert asked == [("search", {"query": "y", "tags": []})]
    assert results == [Page([Hit(title="x", _score=0.5)], (1, 2))]
    assert again == {"arguments": {"query": "y", "tags": []}, "result": record["result"]}
    assert shelf.runs == 1


async def test_async_operations_are_recorded_without_keys():
    shelf = Shelf()
    (record,) = await traced(lambda: shelf.fetch("http://a", api_key="sk-canary"))
    assert record["arguments"] == {"url": "http://a", "api_key": "[redacted]"}
    results: list[bytes] = []

    async def run() -> None:
        results.append(await shelf.fetch("http://b", api_key="sk-canary"))

    asked, answer = replayer({"result": record["result"]})
    with answering_operations(answer):
        await traced(run)
    assert (results, shelf.runs) == ([b"http://a"], 1)
    assert asked == [("fetch", {"url": "http://b", "api_key": "[redacted]"})]


@pytest.mark.parametrize(
    ("kind", "args", "expected", "message"),
    [
        (KeyError, ("gone",), KeyError, "gone"),
        (TimeoutError, ("late",), TimeoutError, "late"),
        (Odd, ("a", "b"), RecordedError, "Odd: "),
        (UnicodeError, ("x",), UnicodeError, "x"),
    ],
)
async def test_errors_are_recorded_and_raised_again(
    kind: type[Exception], args: tuple[str, ...], expected: type[Exception], message: str
):
    def run() -> None:
        with pytest.raises(kind):
            Shelf().fail(kind, *args)

    (record,) = await traced(run)
    assert "result" not in record

    def repeat() -> None:
        with pytest.raises(expected, match=message):
            Shelf().fail(ValueError, "never raised")

    with answering_operations(replayer({"error": record["error"]})[1]):
        (again,) = await traced(repeat)
    assert again["error"] == record["error"]


async def test_an_error_of_the_replay_itself_reaches_the_agent():
    def refuse(name: str, arguments: Any) -> Any:
        raise AglError("the replay differs")

    shelf = Shelf()

    def run() -> None:
        with answering_operations(refuse), pytest.raises(AglError, match="the replay differs"):
            shelf.search("x")

    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context("test"):
            run()
    assert shelf.runs == 0


async def test_a_result_that_is_not_json_is_not_recorded(caplog: pytest.LogCaptureFixture):
    @agl.operation(record=True)
    def connect() -> Any:
        return object()

    with caplog.at_level(logging.WARNING):
        (record,) = await traced(connect)
    assert record == {"arguments": {}}
    assert "the result of connect is not recorded" in caplog.text


async def test_a_wrong_annotation_gives_the_recorded_json():
    @agl.operation(record=True)
    def number() -> int:
        return "many"  # type: ignore[return-value]

    (record,) = await traced(number)
    results: list[Any] = []
    with answering_operations(replayer({"result": record["result"]})[1]):
        await traced(lambda: results.append(number()))
    assert results == ["many"]


async def test_clock_and_random_numbers_are_repeated():
    drawn: list[Any] = []

    def run() -> None:
        drawn.append((agl.now(), agl.random().random(), agl.random().random()))

    records = await traced(run)
    assert [set(one) for one in records] == [{"arguments", "result"}] * 3
    asked, answer = replayer(*({"result": one["result"]} for one in records))
    with answering_operations(answer):
        await traced(run)
    assert drawn[0] == drawn[1]
    assert drawn[0][1] != drawn[0][2]
    assert [name for name, _ in asked] == ["agl.now", "agl.random", "agl.random"]


def test_clock_and_random_numbers_outside_a_rollout():
    assert agl.now() > 0
    assert agl.random().random() != agl.random().random()


def test_generators_and_blocks_are_not_recorded():
    with pytest.raises(ValueError, match="generator"):

        @agl.operation(record=True)
        def numbers():  # pyright: ignore[reportUnusedFunction]
            yield 1

    with pytest.raises(ValueError, match="not a block"), agl.operation(record=True):
        pass
