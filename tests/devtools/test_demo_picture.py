"""The picture of the demo shows what the demo measured."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from devtools.demo_picture import PICTURE, Score, draw, rounds_of

SVG = "{http://www.w3.org/2000/svg}"
RESULT = {
    "simulated": False,
    "model": "a<b",
    "rollouts": 96,
    "seconds": 4.6,
    "seed_score": {"mean": 0.25, "low": 0.1, "high": 0.4, "n": 40},
    "found_score": {"mean": 0.75, "low": 0.6, "high": 0.9, "n": 40},
}
ROUNDS = [Score(0.2, 0.1, 0.3), Score(0.5, 0.4, 0.6), Score(0.8, 0.7, 0.9)]


def test_it_shows_the_scores_of_both_prompts_and_a_point_for_each_round():
    root = ElementTree.fromstring(draw(RESULT, ROUNDS, cores=2))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert "An agent that books rooms, a<b: 96 rollouts in 5 s on 2 cores" in texts
    assert {"0.250", "0.750", "held-out tasks (n=40)"} <= set(texts)
    assert len(list(root.iter(f"{SVG}circle"))) == len(ROUNDS)


def test_a_bar_is_as_high_as_its_score():
    root = ElementTree.fromstring(draw(RESULT, ROUNDS, cores=None))
    heights = {r.get("class"): float(r.get("height", 0)) for r in root.iter(f"{SVG}rect")}
    assert heights["winner"] == pytest.approx(3 * heights["seed"], abs=0.2)


def test_rounds_are_read_from_the_demos_table(tmp_path: Path):
    table = tmp_path / "curve.csv"
    table.write_text("round,best,score,low,high\n0,v0,0.5,0.25,0.75\n1,v1,1.0,0.9,1.0\n")
    assert rounds_of(table) == [Score(0.5, 0.25, 0.75), Score(1.0, 0.9, 1.0)]


def test_the_readme_shows_it():
    root = PICTURE.parents[2]
    assert f"({PICTURE.relative_to(root).as_posix()})" in (root / "README.md").read_text()
