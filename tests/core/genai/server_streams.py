"""Helpers for tests of streams: chunks of chat, assembly, and translation."""

from __future__ import annotations

from typing import Any

from agl_core.genai import Assembler, Protocol, get_protocol, stream_translator

Json = dict[str, Any]


def chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def piece(index: Any = "absent", id: str | None = None, name: Any = None, text: Any = "") -> Json:
    function = {"arguments": text} if name is None else {"name": name, "arguments": text}
    found: Json = {"type": "function", "function": function}
    if index != "absent":
        found["index"] = index
    if id is not None:
        found["id"] = id
    return found


def fed(protocol: Protocol, events: list[Json]) -> Assembler:
    assembler = get_protocol(protocol).assembler()
    for event in events:
        assembler.feed(event)
    return assembler


def assembled(protocol: Protocol, events: list[Json]) -> Json:
    return get_protocol(protocol).recorded_response(fed(protocol, events).result())


def through(
    source: Protocol, target: Protocol, events: list[Json], *, ended: bool = False
) -> list[Json]:
    """Return events in another protocol; the same events if there is no other."""
    if source == target:
        return events
    translator = stream_translator(source, target, usage=True)
    made = [out for event in events for out in translator.feed(event)]
    if ended:
        translator.end()
    return [*made, *translator.close()]


def calls_of(response: Json) -> list[tuple[str, str]]:
    calls = response["choices"][0]["message"].get("tool_calls") or []
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
