"""The built page of the dashboard, which is committed with its sources."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import dashboard
from devtools.packages import with_requirements
from devtools.process import ROOT


def test_the_committed_page_is_that_of_its_sources():
    assert dashboard.is_current(), "run python3 dev.py dashboard, and commit what it built"
    index = (dashboard.STATIC / "index.html").read_text()
    assets = re.findall(r'(?:src|href)="\./([^"]+)"', index)
    assert any(name.endswith(".js") for name in assets)
    assert [name for name in assets if not (dashboard.STATIC / name).is_file()] == []


def git(*words: str | Path) -> None:
    subprocess.run(["git", *words], check=True)


def test_a_changed_source_is_noticed_and_an_ignored_file_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    git("init", "--quiet", tmp_path)
    (tmp_path / ".gitignore").write_text(".DS_Store\n")
    source = tmp_path / "main.tsx"
    source.write_text("page")
    monkeypatch.setattr(dashboard, "WEB", tmp_path)
    monkeypatch.setattr(dashboard, "STAMP", tmp_path / ".git/built-from")
    dashboard.STAMP.write_text(dashboard._digest())
    (tmp_path / ".DS_Store").write_text("a Mac's")
    assert dashboard.is_current()
    source.write_text("another page")
    assert not dashboard.is_current()


@pytest.mark.parametrize("step", ["ci", "run types", "run build"])
def test_a_build_that_fails_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
):
    ran: list[str] = []
    failing = [step]

    def run(*words: object) -> None:
        ran.append(" ".join(map(str, words[3:])))
        if any(ran[-1].startswith(one) for one in failing):
            sys.exit(2)

    monkeypatch.setattr(dashboard, "editable", lambda *_: "python")
    monkeypatch.setattr(dashboard, "output_of", lambda *_, **__: "the routes")
    monkeypatch.setattr(dashboard, "is_current", lambda: True)
    monkeypatch.setattr(dashboard, "DOCUMENT", tmp_path / "openapi.json")
    monkeypatch.setattr(dashboard, "STAMP", tmp_path / "built-from")
    monkeypatch.setattr(dashboard, "_npm", lambda: "npm")
    monkeypatch.setattr(dashboard, "_digest", lambda: "digest")
    monkeypatch.setattr(dashboard, "run", run)
    with pytest.raises(SystemExit):
        dashboard.build()
    ran.clear()
    failing.clear()
    dashboard.build()
    assert [words.split(" --")[0] for words in ran] == ["ci", "run types", "run build"]
    ran.clear()
    dashboard.build()
    assert ran == []


def test_the_page_is_written_where_the_package_takes_it_from():
    config = dashboard.PACKAGE / "web/vite.config.ts"
    found = re.search(r'outDir: "([^"]+)"', config.read_text())
    assert found
    assert (config.parent / found[1]).resolve() == dashboard.STATIC


def test_the_bundle_and_its_requirements_bring_the_dashboard():
    assert "agl_dashboard" in {package.label for package in with_requirements(["agl"])}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert "./plugins/agl_dashboard" in lines
