"""JSON and server-sent events as bytes."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

__all__ = [
    "DONE",
    "Json",
    "ServerSentEvent",
    "SseSplitter",
    "dumps",
    "event_bytes",
    "loads",
    "named_event",
]

Json = dict[str, Any]
"""A JSON object."""

DONE: Final = b"data: [DONE]\n\n"
"""The last event of a stream in OpenAI's chat and completion protocols."""


def loads(body: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: Not valid JSON.
    """
    try:
        return from_json(body)
    except ValueError:
        # The fast parser rejects lone surrogates. JSON allows them, and a model that stops inside a
        # character produces them.
        return json.loads(body)


def dumps(value: Any) -> bytes:
    """Write compact JSON."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:
        return json.dumps(value).encode()


class ServerSentEvent(NamedTuple):
    """One event of a stream."""

    raw: bytes
    """The bytes of the event, its closing blank line included."""
    name: str
    """The ``event`` field; empty without one."""
    data: bytes
    """The joined ``data`` lines; empty for comments and pings."""


class SseSplitter:
    """Splits a byte stream into events, regardless of how it is cut into chunks.

    Format: WHATWG HTML, section 9.2.6 "Interpreting an event stream".

    Args:
        limit: Largest accepted event, in bytes.
    """

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that ``data`` completes.

        Raises:
            ValueError: An event grows past the limit.
        """
        data = self._rest + data if self._rest else data
        if b"\r" in data:
            # A "\r\n" may be cut between two chunks, so a final "\r" waits for the next chunk.
            tail = data[-1:] if data.endswith(b"\r") else b""
            body = data[: len(data) - len(tail)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            data = body + tail
        events: list[ServerSentEvent] = []
        start = 0
        while (end := data.find(b"\n\n", start)) >= 0:
            events.append(_event(data[start : end + 2]))
            start = end + 2
        self._rest = data[start:]
        if len(self._rest) > self._limit:
            raise ValueError(f"an event of a stream is larger than {self._limit} bytes")
        return events

    def close(self) -> bytes:
        """Return the bytes after the last complete event."""
        rest, self._rest = self._rest, b""
        return rest


def _event(raw: bytes) -> ServerSentEvent:
    if (
        raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2
    ):  # the fast path: nearly all events
        return ServerSentEvent(raw, "", raw[6:-2])
    name = ""
    data: list[bytes] = []
    for line in raw.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return ServerSentEvent(raw, name, b"\n".join(data))


def event_bytes(value: Any) -> bytes:
    """Return an unnamed event, as in OpenAI's chat and completion streams."""
    return b"data: " + dumps(value) + b"\n\n"


def named_event(value: dict[str, Any]) -> bytes:
    """Return an event named by its ``type``, as in Responses and Messages streams."""
    return b"event: " + str(value["type"]).encode() + b"\n" + event_bytes(value)
