"""The core knows no package that builds on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / "plugins").is_dir(), reason="needs the repository")
def test_the_core_names_no_package_of_this_repository():
    # Modules, not folders: the distribution `agl` has the name of the command.
    modules = [folder.name for folder in (ROOT / "plugins").glob("*/src/*") if folder.is_dir()]
    assert len(modules) > 40
    names = "|".join(re.escape(name).replace("_", "[-_]") for name in modules)
    name = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])")
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in sorted((ROOT / "agl_core").rglob("*"))
        if file.suffix in (".py", ".pyi", ".md", ".toml")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if name.search(line)
    ]
    assert found == []
