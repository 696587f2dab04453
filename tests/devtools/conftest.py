"""A small repository for the tools that read packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import packages

PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
dependencies = [{requirements}]
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a repository: a core, a base plugin, one that requires it in an extra, and another."""
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    for cached in (packages.core, packages.all_plugins):
        cached.cache_clear()
    (tmp_path / "agl_core").mkdir()
    (tmp_path / "agl_core/__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(name="agl-core", requirements=""))
    requires = '"agl-core>=0.1,<0.2"'
    for name in ("agl-base", "agl-user", "agl-other"):
        folder = tmp_path / "plugins" / name.replace("-", "_")
        folder.mkdir(parents=True)
        text = PYPROJECT.format(name=name, requirements=requires)
        if name == "agl-user":
            text += '\n[project.optional-dependencies]\ntest = ["agl-base[x]>=0.1,<0.2"]\n'
        if name == "agl-base":
            text += "\n[tool.agl-dev]\ndefault = false\n"
        if name == "agl-other":
            text += "\n[tool.agl-dev]\nheavy = true\n"
        (folder / "pyproject.toml").write_text(text)
    yield tmp_path
    for cached in (packages.core, packages.all_plugins):
        cached.cache_clear()
