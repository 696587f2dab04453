from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agl_core.emitter import emit_annotation, operation
from agl_core.otel import (
    extract_links_from_attributes,
    filter_and_unflatten_attributes,
    make_link_attributes,
    query_linked_spans,
)

INPUT = "agentlightning.operation.input"
OUTPUT = "agentlightning.operation.output"
NAME = "agentlightning.operation.name"


@operation
def decorated_at_import(x: int) -> int:
    """Decorated where no tracer is active."""
    return x + 1


async def test_the_tracer_is_looked_up_when_the_operation_runs(recorder):
    assert decorated_at_import(1) == 2
    assert decorated_at_import.__name__ == "decorated_at_import"
    assert decorated_at_import.__doc__ == "Decorated where no tracer is active."
    span = recorder.span
    assert span.name == "agentlightning.operation"
    assert span.status.status_code == "UNSET"
    assert span.attributes == {NAME: "decorated_at_import", f"{INPUT}.x": 1, OUTPUT: 2}


def test_without_a_tracer_it_raises_unless_it_stays_here():
    with pytest.raises(RuntimeError, match="within a rollout"):
        decorated_at_import(1)

    @operation(propagate=False)
    def quiet(x: int) -> int:
        return x

    assert quiet(3) == 3
    with operation(propagate=False) as step:
        step.set_output(1)
    assert step.span().attributes == {OUTPUT: 1}


async def test_every_parameter_is_recorded(recorder):
    @operation
    def complex_signature(a, /, b=2, *rest, key, other=None, **more):
        return {"sum": a, "items": ({1, 2}, "x")}

    complex_signature(1, 2, "x", 4, key={"deep": [1, {"y": True}]}, extra=[1, 2])
    attributes = recorder.span.attributes
    assert filter_and_unflatten_attributes(attributes, INPUT) == {
        "a": 1,
        "b": 2,
        "rest": ["x", 4],
        "key": {"deep": [1, {"y": True}]},
        "other": "null",
        "more": {"extra": [1, 2]},
    }
    assert attributes[f"{OUTPUT}.sum"] == 1
    assert json.loads(str(attributes[f"{OUTPUT}.items"])) == ["{1, 2}", "x"]


async def test_content_that_is_none_is_not_recorded_as_the_word_null(recorder):
    @operation(name="chat")
    def chat(messages, message):
        return {"choices": [{"index": 0, "message": message}]}

    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    chat([{"role": "user", "content": "x"}, said], said)
    attributes = recorder.span.attributes
    assert not [key for key, value in attributes.items() if value == "null"]
    assert attributes[f"{OUTPUT}.choices.0.message.tool_calls.0.id"] == "c1"


async def test_defaults_and_methods_are_recorded(recorder):
    class Agent:
        @operation(name="think")
        def method(self, x: int = 7) -> None: ...

        def __repr__(self) -> str:
            return "the agent"

    Agent().method()
    attributes = recorder.span.attributes
    assert attributes == {
        NAME: "think",
        f"{INPUT}.self": '"the agent"',
        f"{INPUT}.x": 7,
        OUTPUT: "null",
    }


async def test_a_call_that_does_not_fit_fails_as_it_would_and_is_recorded(recorder):
    @operation
    def one(x: int) -> None: ...

    with pytest.raises(TypeError, match="takes 1 positional"):
        one(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        one(y=3)  # type: ignore[call-arg]
    first, second = recorder.spans
    assert filter_and_unflatten_attributes(first.attributes, INPUT) == {"args": [1, 2]}
    assert filter_and_unflatten_attributes(second.attributes, INPUT) == {"kwargs": {"y": 3}}
    assert first.status.status_code == "ERROR"


async def test_values_that_defy_recording_do_not_disturb_the_call(recorder):
    loop: list[object] = []
    loop.append(loop)

    @operation
    def strange(keys: object, loop: object) -> object:
        return {1: loop}

    assert strange({(1, 2): 3}, loop) == {1: loop}
    attributes = recorder.span.attributes
    assert "(1, 2): 3" in str(attributes[INPUT])
    assert attributes[OUTPUT] == "{1: [[...]]}"


async def test_coroutine_functions_are_recorded(recorder):
    @operation(stage="late", detail={"n": 1})
    async def later(x: int) -> str:
        return "done"

    assert await later(1) == "done"
    assert recorder.span.attributes == {
        NAME: "later",
        "stage": "late",
        "detail.n": 1,
        f"{INPUT}.x": 1,
        OUTPUT: "done",
    }


async def test_an_exception_is_recorded_and_goes_on(recorder):
    @operation
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await fail()
    span = recorder.span
    assert span.status.model_dump() == {"status_code": "ERROR", "description": "gone"}
    assert OUTPUT not in span.attributes


async def test_a_block_is_recorded(recorder):
    with operation(name="plan", phase=1) as step:
        step.set_input("a", 2, goal={"x": 1})
        step.set_output(["r1", "r2"])
        with pytest.raises(RuntimeError, match="after its block"):
            step.span()
    span = recorder.span
    assert (
        step.span().attributes
        == span.attributes
        == {
            NAME: "plan",
            "phase": 1,
            f"{INPUT}.args.0": "a",
            f"{INPUT}.args.1": 2,
            f"{INPUT}.goal.x": 1,
            OUTPUT: ["r1", "r2"],
        }
    )
    with pytest.raises(RuntimeError, match="within the operation's block"):
        step.set_output("late")
    with pytest.raises(RuntimeError, match="make a new one"):
        step.__enter__()


async def test_a_block_has_no_name_of_its_own(recorder):
    with pytest.raises(KeyError), operation():
        raise KeyError("k")
    assert recorder.span.attributes == {}
    assert recorder.span.status.status_code == "ERROR"


def test_wrong_use_raises():
    with pytest.raises(ValueError, match="name="):
        operation("plan")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="not both"):
        operation(name="a", **{NAME: "b"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="after its block"):
        operation().span()
    with pytest.raises(RuntimeError, match="within the operation's block"):
        operation().set_input(1)


async def test_an_annotation_finds_the_operation_it_links_to(recorder):
    decorated_at_import(1)
    decorated_at_import(2)
    target = recorder.spans[1]
    links = make_link_attributes({"trace_id": target.trace_id, "span_id": target.span_id})
    emit_annotation({"verdict": "good", **links})
    annotation = recorder.spans[2]
    found = query_linked_spans(recorder.spans, extract_links_from_attributes(annotation.attributes))
    assert found == [target]


def test_emitters_import_no_sdk():
    code = (
        "import sys; before = len(sys.modules); import agl_core.emitter as e; "
        "e.emit_reward(1.0, propagate=False); "
        "heavy = {'opentelemetry', 'aiohttp', 'fastapi', 'anyio'} & set(sys.modules); "
        "assert not heavy, heavy; print(len(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 400
