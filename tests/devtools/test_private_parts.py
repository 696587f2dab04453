"""A package that uses private parts of a library bounds the library's version from above."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]

# Use without an underscore: undocumented modules, and methods that a subclass replaces.
UNDOCUMENTED = {
    "agl_algo_verl": ["verl", "TransferQueue"],
    "agl_algo_gepa": ["gepa"],
    "agl_jinja": ["jinja2"],
    "agl_proxy_litellm": ["litellm"],
    "agl_server_hf": ["transformers"],
    "agl_serving": ["uvicorn"],
    "agl_store_http": ["fastapi"],
    "agl_testing": ["uvicorn"],
    "agl_tracer_agentops": ["agentops"],
    "agl_tracer_weave": ["weave"],
    ROOT.name: ["opentelemetry-sdk"],
}


def requirements(folder: Path) -> dict[str, str]:
    """Return the version bounds of a package's dependencies."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    found: dict[str, str] = {}
    for requirement in project.get("dependencies", ()):
        parsed = Requirement(requirement)
        found[parsed.name] = str(parsed.specifier)
    return found


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


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_private_parts_have_an_upper_bound(folder: Path):
    sources = folder / "agl_core" if folder == ROOT else folder / "src"
    wanted = set(UNDOCUMENTED.get(folder.name, ()))
    for path in sources.rglob("*.py"):
        for library in private_libraries(path.read_text()):
            if library not in sys.stdlib_module_names and not library.startswith("agl_"):
                wanted.add(library)
    bounds = requirements(folder)
    for library in sorted(wanted):
        found = {name: it for name, it in bounds.items() if name.startswith(library)}
        # A library that no package requires is one that the user has, and that is patched there.
        assert all("<" in it for it in found.values()), found
        assert found or library not in UNDOCUMENTED.get(folder.name, ())
