"""The simulated model: it decodes the picture and measures its bars. It is also the judge."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from typing import Any

from agl_scripted import Reply, SeenRequest
from pictures import COLOURS, HEIGHT, Bar

__all__ = ["answer", "read_bars"]

_TOO_CLOSE = 4  # pixels; it mistakes bars whose heights differ by less


def answer(request: SeenRequest) -> Reply:
    """Answer a question about a picture, or grade an answer."""
    body = json.dumps(request.body)
    if "strict and fair judge" in body:
        return _grade(request.body["messages"][-1]["content"])
    picture = re.search(r"data:image/png;base64,([\w+/=]+)", body)
    if picture is None:
        return Reply("I see no picture.")
    bars = read_bars(base64.b64decode(picture[1]))
    if "How many" in body:
        return Reply(f"There are {len(bars)} bars." if len(bars) == 4 else str(len(bars)))
    ordered = sorted(bars, key=lambda bar: bar.height, reverse="tallest" in body)
    first, second = ordered[:2]
    named = second if abs(first.height - second.height) < _TOO_CLOSE else first
    # It does not always keep to a single word, as language models do not.
    whole = f"The {named.colour} bar is the one."
    return Reply(whole if named.height % 2 else named.colour)


def read_bars(png: bytes) -> list[Bar]:
    """Return the bars of a picture, from left to right."""
    (width,) = struct.unpack(">I", png[16:20])
    (length,) = struct.unpack(">I", png[33:37])
    pixels = zlib.decompress(png[41 : 41 + length])
    names: dict[tuple[int, ...], str] = {colour: name for name, colour in COLOURS.items()}
    stride = 1 + 3 * width
    found: list[Bar] = []
    for x in range(width):
        column = [tuple(pixels[y * stride + 1 + 3 * x :][:3]) for y in range(HEIGHT)]
        coloured = [names[pixel] for pixel in column if pixel in names]
        if coloured and (not found or found[-1].colour != coloured[0]):
            found.append(Bar(coloured[0], len(coloured)))
    return found


def _grade(conversation: str) -> Reply:
    right = re.search(r"The right answer is: (\w+)", conversation)
    said = conversation.rpartition("assistant:")[2]
    assert right is not None
    agrees = right[1] in re.findall(r"\w+", said)
    verdict: dict[str, Any] = {
        "reason": f"The answer {'names' if agrees else 'does not name'} {right[1]}.",
        "score": 10 if agrees else 0,
    }
    return Reply(json.dumps(verdict))
