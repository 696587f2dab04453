"""Limits on what JSON becomes: values take more memory and time than their bytes.

``[[],[],[]]`` takes 20 times its size as Python objects, and a store copies and checks each of
them. So a body is weighed before it is parsed. Long texts weigh nothing.
"""

from __future__ import annotations

from typing import Final

from agl_serving import HTTPError
from agl_store_kit import Pauses

__all__ = ["MAX_WEIGHT", "check_weight", "is_light", "is_small"]

MAX_WEIGHT: Final = 200_000
"""Most that a body may weigh: parsing, storing and writing it holds the loop for 100 ms at most
(``tests/benchmark/bench_heavy_requests.py``)."""
_CONTAINER: Final = 8
"""Weight of a list or an object; a value in it weighs 1, and a key 1."""
_CHUNK: Final = 256 * 1024
"""Bytes that are looked at with one call, well below 1 ms."""
_QUICK: Final = 2 * 1024 * 1024
"""Counting in more bytes at a stretch would hold the loop."""


def is_small(body: bytes, limit: int = MAX_WEIGHT) -> bool:
    """Return whether a body is light for its size alone, and parsed in a millisecond."""
    return len(body) <= limit // _CONTAINER


def is_light(body: bytes, limit: int = MAX_WEIGHT) -> bool:
    """Return whether a body is light even if all the punctuation in its texts were JSON's.

    Takes little time, and holds for nearly every body.
    """
    return is_small(body, limit) or (len(body) <= _QUICK and _weight(body) <= limit)


async def check_weight(body: bytes, limit: int = MAX_WEIGHT) -> None:
    """Refuse JSON that holds more values than the server takes.

    Args:
        body: A JSON document, valid or not.
        limit: Most that it may weigh.

    Raises:
        HTTPError: 413.
    """
    if is_light(body, limit):
        return
    pauses = Pauses()
    at = weight = within_text = 0
    while at < len(body):
        chunk = body[at : at + _CHUNK]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            chunk = body[at : at + _CHUNK + 1]  # the last backslash escapes the next byte
        at += len(chunk)
        # Without escaped characters, each quote begins or ends a text.
        parts = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        weight += _weight(b"".join(parts[within_text::2]))
        within_text ^= (len(parts) - 1) % 2
        if weight > limit:
            raise HTTPError(
                413,
                f"the body holds too many values: a value weighs 1, a list or object {_CONTAINER}, "
                f"all together at most {limit}. Send fewer at a time, or as one JSON text",
            )
        await pauses.take()


def _weight(json: bytes) -> int:
    containers = json.count(b"[") + json.count(b"{")
    return json.count(b",") + json.count(b":") + _CONTAINER * containers
