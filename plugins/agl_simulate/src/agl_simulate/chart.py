"""Charts of the throughput by number of runners: as text, and as an SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from agl_simulate.cluster import Prediction

__all__ = ["svg_chart", "text_chart"]

_WIDTH: Final = 40
"""Columns of a bar: with its labels it fits into 80."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"

Points = Sequence[tuple[int, Prediction]]


def text_chart(points: Points, marked: int) -> list[str]:
    """Return the lines of a bar chart.

    Args:
        points: Numbers of runners and their predictions.
        marked: The number of runners whose line is marked.
    """
    highest = max(found.rollouts_per_second for _, found in points) or 1.0
    lines = [f"{'runners':>9} {'rollouts/s':>11}"]
    for runners, found in points:
        rate = found.rollouts_per_second
        eighths = round(8 * _WIDTH * rate / highest)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        mark = " <" if runners == marked else ""
        lines.append(f"{runners:9,} {rate:11,.2f} {bar}{mark}")
    return lines


def svg_chart(points: Points, title: str) -> str:
    """Return the same chart as a line in an SVG image."""
    width, height, left, top = 640, 360, 70, 40
    right, bottom = width - 20, height - 50
    most = max(runners for runners, _ in points)
    highest = max(found.rollouts_per_second for _, found in points) or 1.0

    def place(runners: float, rate: float) -> tuple[float, float]:
        return (
            left + (right - left) * runners / most,
            bottom - (bottom - top) * rate / highest,
        )

    places = [place(runners, found.rollouts_per_second) for runners, found in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    ticks = ""
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(most * part, highest * part)
        ticks += (
            f'<path d="M{left},{y:.1f}H{right}" stroke="#ddd"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{highest * part:,.3g}</text>'
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{most * part:,.0f}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f'<text x="{left}" y="22" font-size="14">{escape(title)}</text>{ticks}'
        f'<polyline points="{line}" fill="none" stroke="#1f5fb4" stroke-width="2"/>'
        f'<g fill="#1f5fb4">{dots}</g>'
        f'<text x="{(left + right) / 2}" y="{height - 12}" text-anchor="middle">runners</text>'
        f'<text x="16" y="{(top + bottom) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {(top + bottom) / 2})">rollouts per second</text></svg>\n'
    )
