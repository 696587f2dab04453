"""The page of comparison: each statement about another project names its source."""

from __future__ import annotations

import re

from devtools.process import ROOT

PAGE = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
LABEL = re.compile(r"^\[([\w-]+)\]: (https://\S+)$", re.MULTILINE)
PROJECTS = (
    *("agent-lightning", "verifiers", "prime-rl", "rLLM", "TRL", "verl"),
    *("AReaL", "SkyRL", "NeMo", "ART", "TensorZero", "GEPA"),
)
OWN_WORDS = {"none found", "no"}


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_cell_about_another_project_has_a_link_or_says_that_nothing_was_found():
    _, *others = rows(section("Side by side"))
    assert len(others) == 11
    for name, *cells in others:
        for cell in (name, *cells):
            assert "](" in cell or "][" in cell or cell in OWN_WORDS, f"{name}: {cell}"


def test_each_project_has_what_is_better_there_and_what_is_in_agl():
    parts = section("Each project").split("\n### ")[1:]
    named = " ".join(part.splitlines()[0] for part in parts)
    assert all(name in named for name in PROJECTS)
    for part in parts:
        better, ours = part.partition("* **In agl:**")[::2]
        assert "* **Better there:**" in better
        assert ours.strip()
        assert "][" in better, part.splitlines()[0]


def test_links_are_defined_and_used():
    defined = dict(LABEL.findall(PAGE))
    used = set(re.findall(r"\]\[([\w-]+)\]", PAGE))
    assert set(defined) == used
    assert "not compared" not in PAGE


def test_the_page_has_a_date_and_knows_our_own_strategies():
    assert re.search(r"Read on \d+ \w+ 20\d\d", PAGE)
    assert "agl-exec-k8s" in PAGE
