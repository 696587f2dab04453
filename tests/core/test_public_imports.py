"""Tests that plugins and examples import only public names of the core."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import agl_core
from agl_core.genai import PROTOCOLS
from devtools.public_names import PUBLIC_MODULES
from tests.tables import check_each

ROOT = Path(agl_core.__file__).parents[1]
PACKAGES = {path.parent.name for path in (ROOT / "agl_core").glob("*/__init__.py")}
FOLDERS = {f"agl_core.genai.{name}" for name in PROTOCOLS}
"""Packages inside a package of the core: one per model protocol, reached by ``get_protocol``."""

pytestmark = pytest.mark.skipif(not (ROOT / "plugins").is_dir(), reason="needs the repository")


def sources() -> list[Path]:
    return [*ROOT.glob("plugins/*/src/**/*.py"), *ROOT.glob("examples/**/*.py")]


@cache
def imports(file: Path) -> tuple[tuple[str, str], ...]:
    """Return module and name of everything that a file imports; several tests look at each file."""
    return tuple(_imports(ast.parse(file.read_text())))


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def test_plugins_import_no_private_module_of_the_core():
    private = {
        f"{file.relative_to(ROOT)}: {module} {name}"
        for file in sources()
        for module, name in imports(file)
        if module.split(".")[0] == "agl_core"
        and any(part.startswith("_") for part in f"{module}.{name}".split("."))
        and name != "__version__"
    }
    assert private == set()


def test_plugins_import_from_packages_of_the_core_and_not_from_modules_in_them():
    allowed = {f"agl_core.{name}" for name in PACKAGES.union(PUBLIC_MODULES)} | {"agl_core"}
    others = {
        f"{file.relative_to(ROOT)}: {module}"
        for file in sources()
        for module, _ in imports(file)
        if module.split(".")[0] == "agl_core" and module not in allowed
    }
    assert others == set()


def test_other_modules_of_the_core_are_private_by_name():
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in (ROOT / "agl_core").rglob("*.py")
    }
    public = {
        name.removesuffix(".__init__")
        for name in modules
        if "._" not in name.removesuffix(".__init__")
    }
    allowed = {f"agl_core.{name}" for name in PACKAGES.union(PUBLIC_MODULES)}
    assert public == {*allowed, "agl_core", *FOLDERS}


def test_packages_say_what_is_public():
    def check(package: str) -> None:
        module = import_module(f"agl_core.{package}")
        assert module.__doc__
        names = module.__all__
        assert len(names) == len(set(names))
        assert [name for name in names if not hasattr(module, name)] == []

    check_each(check, sorted(PACKAGES))


def test_what_plugins_import_is_public():
    unlisted = set[str]()
    for file in sources():
        for module, name in imports(file):
            is_package = module in {f"agl_core.{each}" for each in PACKAGES}
            if is_package and name and name not in import_module(module).__all__:
                unlisted.add(f"{file.relative_to(ROOT)}: {module} {name}")
    assert unlisted == set()
