"""JSON and server-sent events as bytes."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, cast

from pydantic_core import from_json, to_json

Json = dict[str, Any]
"""A JSON object."""

DONE: Final = b"data: [DONE]\n\n"
"""The last event of a stream in OpenAI's chat and completion protocols."""


def loads(body: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: Not valid JSON in UTF-8, or nested too deeply.
    """
    try:
        return from_json(body)
    except ValueError as error:
        if "recursion" in str(error):
            raise
        # The fast parser rejects lone surrogates. JSON allows them, and a model that stops inside a
        # character produces them. It also rejects a byte order mark, which clients skip.
        try:
            parsed = json.loads(body.decode("utf-8-sig"))
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
        if _is_too_deep(parsed):
            raise ValueError("the JSON is nested too deeply") from None
        return parsed


def _is_too_deep(value: Any) -> bool:
    """Return whether a value is nested deeper than the fast parser allows."""
    level: list[Any] = [value]
    for _ in range(200):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in cast("list[Any]", item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


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
        self._rest = bytearray()
        self._searched = 0
        self._half_line_end = b""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that ``data`` completes.

        Raises:
            ValueError: An event grows past the limit.
        """
        if self._half_line_end or b"\r" in data:
            # A "\r\n" may be cut between two chunks, so a final "\r" waits for the next chunk.
            data = self._half_line_end + data
            self._half_line_end = b"\r" if data.endswith(b"\r") else b""
            data = data[: len(data) - len(self._half_line_end)]
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        rest = self._rest
        rest += data
        events: list[ServerSentEvent] = []
        start = 0
        # Only new bytes are searched: an event of many chunks must not cost the square of its size.
        while (end := rest.find(b"\n\n", max(start, self._searched))) >= 0:
            events.append(_event(bytes(rest[start : end + 2])))
            start = end + 2
        del rest[:start]
        self._searched = max(0, len(rest) - 1)
        if len(rest) > self._limit:
            raise ValueError(f"an event of a stream is larger than {self._limit} bytes")
        return events

    def close(self) -> bytes:
        """Return the bytes after the last complete event."""
        rest = bytes(self._rest) + self._half_line_end
        self._rest.clear()
        self._searched, self._half_line_end = 0, b""
        return rest


def _event(raw: bytes) -> ServerSentEvent:
    if (
        raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2
    ):  # the fast path: nearly all events
        return ServerSentEvent(raw, "", raw[6:-2])
    name = ""
    data: list[bytes] = []
    for line in raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
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
