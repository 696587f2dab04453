"""The built page of the dashboard, which is committed with its sources."""

from __future__ import annotations

import re

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


def test_a_changed_source_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.tsx").write_text("other")
    monkeypatch.setattr(dashboard, "WEB", tmp_path)
    assert not dashboard.is_current()


def test_the_page_is_written_where_the_package_takes_it_from():
    config = dashboard.PACKAGE / "web/vite.config.ts"
    found = re.search(r'outDir: "([^"]+)"', config.read_text())
    assert found
    assert (config.parent / found[1]).resolve() == dashboard.STATIC


def test_the_bundle_and_its_requirements_bring_the_dashboard():
    assert "agl_dashboard" in {package.label for package in with_requirements(["agl"])}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert "./plugins/agl_dashboard" in lines
