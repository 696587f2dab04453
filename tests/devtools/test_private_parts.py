"""A package that uses private parts of a library bounds the library's version from above."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement

from devtools import packages
from devtools.packages import Package
from tests.tables import check_each


def bounds(package: Package) -> dict[str, str]:
    """Return the version bounds of a package's dependencies."""
    parsed = map(Requirement, package.dependencies)
    return {requirement.name: str(requirement.specifier) for requirement in parsed}


def private_libraries(source: str) -> Iterator[str]:
    """Yield the libraries of which a module imports or reads a name with an underscore."""
    modules: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            if any(re.match(r"_[^_]", name) for name in names):
                yield names[0]
            modules |= {a.asname or a.name: names[0] for a in node.names if a.name[0].islower()}
        elif isinstance(node, ast.Import):
            modules |= {(a.asname or a.name).split(".")[0]: a.name for a in node.names}
        elif (
            isinstance(node, ast.Attribute)
            and re.match(r"_[^_]", node.attr)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            yield modules[node.value.id].split(".")[0]


def test_the_scan_sees_imports_and_attributes():
    for source in (
        "from lib.a._b import c",
        "from lib import _a",
        "import lib\nlib._a()",
        "from lib import mod as m\nm._a",
    ):
        assert set(private_libraries(source)) == {"lib"}, source
    assert not set(private_libraries("from lib import a\nfrom lib.b import C\nself._x"))


def test_private_parts_have_an_upper_bound():
    check_each(has_upper_bounds, packages.everything())


def has_upper_bounds(package: Package) -> None:
    # Use without an underscore is declared: undocumented modules, methods that a subclass replaces.
    wanted = set(package.uses_undocumented)
    for path in package.source.rglob("*.py"):
        for library in private_libraries(path.read_text()):
            if library not in sys.stdlib_module_names and not library.startswith("agl_"):
                wanted.add(library)
    required = bounds(package)
    for library in sorted(wanted):
        found = {name: it for name, it in required.items() if name.startswith(library)}
        # A library that no package requires is one that the user has, and that is patched there.
        assert all("<" in it for it in found.values()), found
        assert found or library not in package.uses_undocumented
