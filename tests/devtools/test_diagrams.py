"""The pictures of the concept pages are those of the script, and each page shows its own."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from devtools.diagrams import DIAGRAMS, FOLDER, Diagram, draw
from devtools.process import ROOT
from tests.tables import check_each

SVG = "{http://www.w3.org/2000/svg}"


def test_each_picture_is_current_and_its_page_shows_it():
    check_each(is_current_and_shown, DIAGRAMS.items())


def is_current_and_shown(name: str, diagram: Diagram) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == draw(diagram), "run: python3 dev.py picture"
    page = ROOT / f"docs/concepts/{'index' if name == 'loop' else name}.md"
    assert f"![{diagram.title}](../images/concepts/{name}.svg)" in page.read_text()


def test_boxes_do_not_overlap_and_every_arrow_has_its_length():
    check_each(has_room, DIAGRAMS.items())


def has_room(_: str, diagram: Diagram) -> None:
    root = ElementTree.fromstring(draw(diagram))
    boxes = [
        (float(box.get("x", 0)), float(box.get("y", 0)))
        for box in root.iter(f"{SVG}rect")
        if box.get("class") != "page"
    ]
    assert len(boxes) == len(diagram.boxes)
    assert all(
        abs(a[0] - b[0]) > 128 or abs(a[1] - b[1]) > 46 for a in boxes for b in boxes if a != b
    )
    arrows = [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("class")]
    assert len(arrows) == len(diagram.arrows)
    for arrow in arrows:
        x1, y1, x2, y2 = map(float, arrow.removeprefix("M").split())
        assert ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 > 25
