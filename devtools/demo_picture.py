"""Draws ``docs/images/demo.svg``: what the demo measured, round by round and on held-out tasks.

``python3 dev.py picture`` runs the demo and writes the picture. The picture uses fonts of the
reader's machine and needs no other file.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from devtools.process import ROOT, output_of

PICTURE = ROOT / "docs/images/demo.svg"
RUN = ROOT / "agl-runs/room_booking"

WIDTH, HEIGHT = 860, 330
LEFT, RIGHT, TOP, BOTTOM = 60, 560, 74, 280
"""Frame of the curve, in pixels."""
BARS, BAR_WIDTH = (640, 750), 60
"""Left edges of the two bars, and their width."""
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #57606a }
.title { font-size: 16px; font-weight: 600; fill: #24292f }
.value { font-size: 15px; font-weight: 600; fill: #24292f }
.grid { stroke: #d8dee4 }
.band { fill: #0969da; opacity: .15 }
.curve { fill: none; stroke: #0969da; stroke-width: 2.5 }
.dot, .winner { fill: #0969da }
.seed { fill: #afb8c1 }
.interval { stroke: #24292f; stroke-width: 1.5 }
.page { fill: #ffffff }"""


class Score(NamedTuple):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def draw(result: Mapping[str, Any], rounds: Sequence[Score], cores: int | None) -> str:
    """Return the picture as SVG.

    Args:
        result: What ``main.py --json`` of the demo prints.
        rounds: Score of the best prompt after each round, on the validation tasks; at least two.
        cores: Number of cores of the machine, if known.
    """
    simulated = "a simulated model" if result["simulated"] else result["model"]
    seed, winner = (
        Score(*(result[key][part] for part in Score._fields))
        for key in ("seed_score", "found_score")
    )
    title = (
        f"An agent that books rooms, {simulated}: {result['rollouts']} rollouts"
        f" in {result['seconds']:.0f} s" + (f" on {cores} cores" if cores else "")
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        _text(24, 32, title, "title"),
        _text(LEFT, 60, "best prompt so far, validation tasks, by round"),
        _text(BARS[0] - 10, 60, f"held-out tasks (n={result['found_score']['n']})"),
        *_grid(len(rounds)),
        *_curve(rounds),
        *_bar(BARS[0], seed, "seed prompt", "seed"),
        *_bar(BARS[1], winner, "found prompt", "winner"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _y(score: float) -> float:
    return round(BOTTOM - score * (BOTTOM - TOP), 1)


def _x(number: int, rounds: int) -> float:
    return round(LEFT + number * (RIGHT - LEFT) / (rounds - 1), 1)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{css}>{escape(text)}</text>'


def _grid(rounds: int) -> Iterator[str]:
    for score in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(score)
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>'
        yield _text(LEFT - 8, y + 4, f"{score:g}", anchor="end")
    for number in range(rounds):
        yield _text(_x(number, rounds), BOTTOM + 20, str(number), anchor="middle")


def _curve(rounds: Sequence[Score]) -> Iterator[str]:
    columns = [_x(number, len(rounds)) for number in range(len(rounds))]
    upper = [f"{x},{_y(score.high)}" for x, score in zip(columns, rounds, strict=True)]
    lower = [f"{x},{_y(score.low)}" for x, score in zip(columns, rounds, strict=True)]
    line = [f"{x},{_y(score.mean)}" for x, score in zip(columns, rounds, strict=True)]
    yield f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"/>'
    yield f'<polyline class="curve" points="{" ".join(line)}"/>'
    for point in line:
        x, y = point.split(",")
        yield f'<circle class="dot" cx="{x}" cy="{y}" r="4"/>'


def _bar(x: float, score: Score, name: str, kind: str) -> Iterator[str]:
    y, middle = _y(score.mean), x + BAR_WIDTH / 2
    height = round(BOTTOM - y, 1)
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{BAR_WIDTH}" height="{height}"/>'
    yield (
        f'<line class="interval" x1="{middle}" x2="{middle}"'
        f' y1="{_y(score.low)}" y2="{_y(score.high)}"/>'
    )
    yield _text(middle, BOTTOM + 20, name, anchor="middle")
    yield _text(middle, BOTTOM + 40, f"{score.mean:.3f}", "value", "middle")


def rounds_of(curve: Path) -> list[Score]:
    """Read the scores from the demo's ``curve.csv``."""
    with curve.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Score(*(float(row[key]) for key in ("score", "low", "high"))) for row in rows]


def write(python: Path) -> None:
    """Run the demo and write the picture.

    Args:
        python: An interpreter that has what the demo needs.
    """
    output = output_of(python, "examples/room_booking/main.py", "--json")
    result = json.loads(output.splitlines()[-1])
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw(result, rounds_of(RUN / "curve.csv"), os.cpu_count()), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
