"""The core knows no package that builds on it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


@pytest.mark.skipif(not (ROOT / "plugins").is_dir(), reason="needs the repository")
def test_what_stayed_in_the_core_is_needed_by_the_packages_that_the_table_names():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/(_\w+)\.py` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 10
    for room, module, names, users in rows:
        text = (ROOT / "agl_core" / room / f"{module}.py").read_text(encoding="utf-8")
        defined = {name for name in words(names) if is_defined(name, text)}
        assert defined, f"{room}/{module}.py"
        for package in words(users):
            assert defined & set(imported(package, f"agl_core.{room}")), f"{package}: {module}"


def is_defined(name: str, text: str) -> bool:
    return re.search(rf"^(class |def )?{name}\b", text, re.MULTILINE) is not None


def words(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def imported(package: str, module: str) -> Iterator[str]:
    """Yield the names that a package uses of a module of the core."""
    room = module.rpartition(".")[2]
    for file in (ROOT / "plugins" / package / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        yield from re.findall(rf"\b{room}\.(\w+)", text)  # from agl_core import genai
        nodes = ast.walk(ast.parse(text)) if module in text else ()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == module:
                yield from (alias.name for alias in node.names)
