"""Draws the pictures of the concept pages: ``python3 dev.py picture``.

A picture is a few boxes on a grid, and arrows between them. SVG needs no script and no font of
another host, so the same file works in the repository and on the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

from devtools.process import ROOT

FOLDER = ROOT / "docs/images/concepts"
COLUMN, ROW = 215, 96
"""Distance of the centres of neighbouring boxes, in pixels."""
WIDTH, HEIGHT = 128, 46
MARGIN = 20
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f; text-anchor: middle }
.note { font-size: 12px; fill: #57606a; paint-order: stroke; stroke: #fff; stroke-width: 4px }
.box { fill: #f6f8fa; stroke: #57606a; stroke-width: 1.2 }
.main { fill: #ddf4ff; stroke: #0969da; stroke-width: 2 }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#head) }
.page { fill: #ffffff }"""
HEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
    ' markerHeight="7" orient="auto"><path d="M0 0 10 5 0 10z" fill="#57606a"/></marker></defs>'
)

Place = tuple[float, float]


class Arrow(NamedTuple):
    """From one box to another; ``side`` moves it sideways, for a pair of arrows."""

    start: str
    end: str
    label: str = ""
    side: float = 0.0


@dataclass(frozen=True)
class Diagram:
    """A picture.

    Attributes:
        title: What it shows, for readers who do not see it.
        boxes: Column and row of each box by its name; a name may have two lines.
        arrows: The arrows.
        main: The box that the page is about.
    """

    title: str
    boxes: Mapping[str, Place]
    arrows: tuple[Arrow, ...]
    main: str


A = Arrow
DIAGRAMS: dict[str, Diagram] = {
    "loop": Diagram(
        "The algorithm and the runners communicate only through the store",
        {
            "algorithm": (0, 0),
            "store": (1, 0),
            "runner": (2, 0),
            "agent": (3, 0),
            "adapter": (0, 1),
            "tracer": (2, 1),
            "proxy": (3, 1),
            "model server": (3, 2),
        },
        (
            A("algorithm", "store", "tasks"),
            A("store", "runner", "claims"),
            A("runner", "agent", "calls"),
            A("agent", "proxy", "model calls"),
            A("agent", "tracer", "spans"),
            A("tracer", "store", "spans"),
            A("proxy", "model server", "relays"),
            A("store", "adapter", "spans"),
            A("adapter", "algorithm", "rows"),
        ),
        "store",
    ),
    "store": Diagram(
        "A rollout waits in the store until a runner claims it; its spans and rewards stay there",
        {"algorithm": (0, 0), "queue": (1, 0), "runner": (2, 0), "spans": (1, 1)},
        (
            A("algorithm", "queue", "enqueue"),
            A("queue", "runner", "dequeue"),
            A("runner", "spans", "add spans"),
            A("spans", "algorithm", "query spans"),
        ),
        "queue",
    ),
    "runner": Diagram(
        "A runner claims a rollout, runs the agent in a trace, and writes the final status",
        {"store": (0, 0), "runner": (1, 0), "agent": (2, 0), "heartbeats": (0, 1), "hooks": (1, 1)},
        (
            A("store", "runner", "rollout", -9),
            A("runner", "store", "status", -9),
            A("runner", "agent", "task", -9),
            A("agent", "runner", "reward", -9),
            A("runner", "heartbeats", "every 10 s"),
            A("runner", "hooks", "events"),
        ),
        "runner",
    ),
    "tracer": Diagram(
        "SDK calls, operations and rewards of an agent become spans in the store",
        {
            "SDK call": (0, 0),
            "@operation": (0, 1),
            "emit_reward": (0, 2),
            "tracer": (1, 1),
            "exporter\nthread": (2, 1),
            "store": (3, 1),
        },
        (
            A("SDK call", "tracer"),
            A("@operation", "tracer"),
            A("emit_reward", "tracer"),
            A("tracer", "exporter\nthread", "spans"),
            A("exporter\nthread", "store", "batches"),
        ),
        "tracer",
    ),
    "adapter": Diagram(
        "An adapter turns the spans of an attempt into rows for an algorithm",
        {
            "spans": (0, 1),
            "adapter": (1, 1),
            "triplets": (2, 0),
            "trajectories": (2, 1),
            "messages": (2, 2),
            "report": (1, 2),
        },
        (
            A("spans", "adapter"),
            A("adapter", "triplets"),
            A("adapter", "trajectories"),
            A("adapter", "messages"),
            A("adapter", "report", "left out, why"),
        ),
        "adapter",
    ),
    "algorithm": Diagram(
        "An algorithm enqueues tasks with resources, reads rewards, and stores better resources",
        {"resources": (0, 0), "algorithm": (1, 0), "tasks": (2, 0), "rewards": (2, 1)},
        (
            A("algorithm", "tasks", "enqueue"),
            A("tasks", "rewards", "runners"),
            A("rewards", "algorithm", "read"),
            A("algorithm", "resources", "improve"),
        ),
        "algorithm",
    ),
    "trainer": Diagram(
        "The trainer builds the parts and hands two bundles to the execution strategy",
        {
            "train file": (0, 0),
            "plugins": (0, 1),
            "trainer": (1, 0.5),
            "algorithm\nbundle": (2, 0),
            "runner\nbundle": (2, 1),
            "strategy": (3, 0.5),
        },
        (
            A("train file", "trainer"),
            A("plugins", "trainer"),
            A("trainer", "algorithm\nbundle"),
            A("trainer", "runner\nbundle"),
            A("algorithm\nbundle", "strategy"),
            A("runner\nbundle", "strategy"),
        ),
        "trainer",
    ),
    "proxy": Diagram(
        "The proxy relays model calls and writes a span of each to the store",
        {"agent": (0, 0), "proxy": (1, 0), "model server": (2, 0), "store": (1, 1)},
        (
            A("agent", "proxy", "request", -9),
            A("proxy", "agent", "stream", -9),
            A("proxy", "model server", "request", -9),
            A("model server", "proxy", "token ids", -9),
            A("proxy", "store", "a span per call"),
        ),
        "proxy",
    ),
    "execution": Diagram(
        "With cs, runners are processes around a store server, on this machine and on others",
        {
            "algorithm": (0, 0.5),
            "store server": (1, 0.5),
            "runner process": (2, 0),
            "agl runner\nelsewhere": (2, 1),
        },
        (
            A("algorithm", "store server", "in process"),
            A("runner process", "store server", "HTTP"),
            A("agl runner\nelsewhere", "store server", "HTTP"),
        ),
        "store server",
    ),
    "model-server": Diagram(
        "The algorithm loads new weights into the model server behind the proxy",
        {"agents": (0, 0), "proxy": (1, 0), "model server": (2, 0), "algorithm": (1, 1)},
        (
            A("agents", "proxy", "calls"),
            A("proxy", "model server", "calls"),
            A("algorithm", "proxy", "pause"),
            A("algorithm", "model server", "new weights"),
        ),
        "model server",
    ),
}


def draw(diagram: Diagram) -> str:
    """Return the picture as SVG."""
    columns = max(column for column, _ in diagram.boxes.values())
    rows = max(row for _, row in diagram.boxes.values())
    width = 2 * MARGIN + WIDTH + columns * COLUMN
    height = 2 * MARGIN + HEIGHT + rows * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"',
        f' role="img" width="{width:g}">',
        f"<title>{escape(diagram.title)}</title>",
        f"<style>{STYLE}</style>",
        HEAD,
        f'<rect class="page" width="{width:g}" height="{height:g}" rx="8"/>',
    ]
    for arrow in diagram.arrows:
        parts += _arrow(
            arrow, _centre(diagram.boxes[arrow.start]), _centre(diagram.boxes[arrow.end])
        )
    for name, place in diagram.boxes.items():
        parts += _box(name, _centre(place), "main" if name == diagram.main else "box")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _centre(place: Place) -> Place:
    column, row = place
    return MARGIN + WIDTH / 2 + column * COLUMN, MARGIN + HEIGHT / 2 + row * ROW


def _box(name: str, centre: Place, kind: str) -> Iterator[str]:
    x, y = centre
    yield (
        f'<rect class="{kind}" x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}"'
        f' width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    )
    lines = name.split("\n")
    for number, line in enumerate(lines):
        below = y + 4 + 16 * (number - (len(lines) - 1) / 2)
        yield f'<text x="{x:g}" y="{below:g}">{escape(line)}</text>'


def _arrow(arrow: Arrow, start: Place, end: Place) -> Iterator[str]:
    """Draw a line between the borders of two boxes, and its label at the middle."""
    (x1, y1), (x2, y2) = start, end
    dx, dy = x2 - x1, y2 - y1
    length = (dx**2 + dy**2) ** 0.5
    # To the right of the direction, so that two arrows of a pair part.
    x_side, y_side = -dy / length * arrow.side, dx / length * arrow.side
    reach = min(
        (WIDTH / 2 + 2) / abs(dx) if dx else 1.0,
        (HEIGHT / 2 + 2) / abs(dy) if dy else 1.0,
    )
    x1, x2 = x1 + dx * reach + x_side, x2 - dx * reach + x_side
    y1, y2 = y1 + dy * reach + y_side, y2 - dy * reach + y_side
    yield f'<path class="arrow" d="M{x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}"/>'
    if arrow.label:
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        if abs(dx) > abs(dy):
            y += 17 if dx * arrow.side > 0 else -7
        elif not dx:
            x += 6 + 3.2 * len(arrow.label)
        yield f'<text class="note" x="{x:.1f}" y="{y:.1f}">{escape(arrow.label)}</text>'


def write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, diagram in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw(diagram), encoding="utf-8")
    print(f"wrote {len(DIAGRAMS)} pictures in {FOLDER.relative_to(ROOT)}")
