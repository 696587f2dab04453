"""The newcomer's path: what is installed from wheels, and which pages it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools import newcomer, walk_docs
from devtools.newcomer import from_wheels
from devtools.pages import blocks_of
from devtools.process import ROOT

WHEELS = Path("/a folder/dist")
INSTALL = "pip install --quiet --find-links '/a folder/dist'"


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("pip install -r requirements.txt    # from a clone", f"{INSTALL} agl"),
        (
            "pip install . ./plugins/agl_algo_apo openai",
            f"{INSTALL} agl-core agl-algo-apo openai",
        ),
        (
            "pip install './plugins/agl_algo_grpo[lora,plot]'",
            f"{INSTALL} 'agl-algo-grpo[lora,plot]'",
        ),
        ("agl plugins list", "agl plugins list"),
        ("export A=1 && pip list", "export A=1 && pip list"),
    ],
)
def test_packages_of_a_clone_are_installed_by_name(line: str, typed: str):
    assert from_wheels(line, WHEELS) == typed


def test_the_path_has_the_quick_start_first_and_every_tutorial():
    tutorials = {path.relative_to(ROOT) for path in ROOT.glob("docs/tutorials/*.md")}
    assert newcomer.PATH[0] == Path("docs/quick-start.md")
    assert set(newcomer.PATH[1:]) == tutorials
    assert not set(newcomer.PATH) & set(walk_docs.pages())


@pytest.mark.parametrize("page", newcomer.PATH[:2])
def test_a_page_that_takes_too_long_fails(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(newcomer, "blocks_of", lambda page: [])
    newcomer._walk_page(page, tmp_path, WHEELS)
    (tmp_path / page.stem).rmdir()
    monkeypatch.setitem(newcomer.LONGEST, page.stem, -1)
    with pytest.raises(SystemExit, match="more than -1"):
        newcomer._walk_page(page, tmp_path, WHEELS)


def test_the_quick_start_ends_with_the_dashboard():
    assert blocks_of(ROOT / newcomer.PATH[0])[-1].text == "agl dashboard runs.db\n"


def test_heavy_blocks_are_left_to_the_heavy_tests(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```sh heavy\nmake\n```\n```sh\nls\n```\n```sh norun\nrm\n```\n")
    assert [block.text for block in blocks_of(page)] == ["ls\n"]
    assert [block.text for block in blocks_of(page, heavy=True)] == ["make\n"]
