"""Writes ``pyrightconfig.json``: where pyright finds each package, and what it cannot find.

The file extends ``[tool.pyright]`` of the root ``pyproject.toml`` with what follows from the
packages. Editors read it too; git ignores it, and ``python3 dev.py types`` writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devtools import packages, suites
from devtools.process import ROOT

FILE = ROOT / "pyrightconfig.json"
SHARED_AGENTS = "tests/frameworks"
SITE = "devtools/docs_site"
UNKNOWN_LIBRARIES = {"reportMissingImports": "none", "reportMissingModuleSource": "none"}
"""Settings of code that leans on libraries too heavy for the development environment: what comes
from there is unknown to the checker, everything else is checked."""


def write() -> None:
    FILE.write_text(json.dumps(configuration(), indent=2) + "\n", encoding="utf-8")


def configuration() -> dict[str, Any]:
    """Return what the file holds."""
    sources = [f"plugins/{package.label}/src" for package in packages.all_plugins()]
    unknown: list[dict[str, Any]] = [{"root": SITE, "extraPaths": ["."], **UNKNOWN_LIBRARIES}]
    unknown += [{"root": folder, **UNKNOWN_LIBRARIES} for folder in _without_libraries()]
    return {
        "extends": "pyproject.toml",
        # The modules of an example import each other by name.
        "extraPaths": [*(f"examples/{name}" for name in _examples()), SHARED_AGENTS, *sources],
        "executionEnvironments": unknown,
    }


def _without_libraries() -> Iterator[str]:
    """Yield the folders whose libraries are not in the development environment."""
    yield SHARED_AGENTS
    for package in packages.all_plugins():
        if package.heavy:
            yield f"plugins/{package.label}"
            yield f"tests/plugins/{package.label}"
    separate = set(suites.examples_with_environments())
    for name in _examples():
        if name in separate or _uses_heavy_packages(ROOT / "examples" / name):
            yield f"examples/{name}"
            yield f"tests/examples/{name}"


def _examples() -> list[str]:
    return sorted({path.parent.name for path in ROOT.glob("examples/*/*.py")})


def _uses_heavy_packages(folder: Path) -> bool:
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))
    imported = {name for text in texts for name in packages.IMPORTED_PACKAGE.findall(text)}
    return any(package.heavy for package in packages.all_plugins() if package.module in imported)
