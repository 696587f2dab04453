"""Bar charts as PNG files, and questions about them."""

from __future__ import annotations

import base64
import struct
import zlib
from random import Random
from typing import Any, NamedTuple

__all__ = ["COLOURS", "HEIGHT", "Bar", "data_url", "draw", "make_questions"]

COLOURS = {"red": (220, 40, 40), "blue": (40, 80, 220), "green": (30, 160, 60), "black": (0, 0, 0)}
HEIGHT = 64  # pixels
_WIDTH = 16  # of a bar; as much white is between two bars
_WHITE = (255, 255, 255)


class Bar(NamedTuple):
    colour: str
    height: int


def draw(bars: list[Bar]) -> bytes:
    """Return a PNG of bars that stand on the lower edge (https://www.w3.org/TR/png-3/)."""
    rows: list[bytes] = []
    for y in range(HEIGHT, 0, -1):
        row = bytearray(b"\0")  # the filter of a row: none
        for bar in bars:
            colour = COLOURS[bar.colour] if y <= bar.height else _WHITE
            row += bytes(colour) * _WIDTH + bytes(_WHITE) * _WIDTH
        rows.append(bytes(row))
    size = struct.pack(">IIBBBBB", 2 * _WIDTH * len(bars), HEIGHT, 8, 2, 0, 0, 0)  # RGB, 8 bits
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(png: bytes) -> str:
    """Return a picture as a URL that holds its bytes."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def make_questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return pictures with questions: the tallest bar, the lowest bar, the number of bars."""
    rng = Random(seed)
    questions: list[dict[str, Any]] = []
    for number in range(count):
        colours = rng.sample(list(COLOURS), rng.choice((3, 4)))
        heights = rng.sample(range(4, HEIGHT), len(colours))
        bars = [Bar(*pair) for pair in zip(colours, heights, strict=True)]
        ordered = sorted(bars, key=lambda bar: bar.height)
        question, answer = (
            ("Which colour has the tallest bar?", ordered[-1].colour),
            ("Which colour has the lowest bar?", ordered[0].colour),
            ("How many bars are there?", str(len(bars))),
        )[number % 3]
        picture = data_url(draw(bars))
        questions.append({"picture": picture, "question": question, "answer": answer})
    return questions
