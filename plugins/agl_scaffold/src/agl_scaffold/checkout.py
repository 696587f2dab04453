"""Turns the files of a new package into those of a package of this project's repository.

There the folder has the module's name, the tests are beside those of the other packages, and lint,
types and tests have their settings at the root.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from agl_core.plugins import CORE_DISTRIBUTION
from agl_scaffold.names import PluginName

__all__ = ["Checkout", "checkout_of", "with_sorted_imports"]

_OWN_NAME = re.compile(r"agl(?:-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A working tree of this project's repository.

    Attributes:
        root: Its root.
        version: The version that all its packages have.
    """

    root: Path
    version: str

    def folders(
        self, name: PluginName, files: Mapping[str, str]
    ) -> tuple[Path, Mapping[Path, Mapping[str, str]]]:
        """Return the package's folder, and the files of each new folder.

        Args:
            name: Kind and name of the plugin.
            files: Texts of the package's files by their paths in a repository of its own.
        """
        package = self.root / "plugins" / name.package
        inside = {"LICENSE": (self.root / "LICENSE").read_text(encoding="utf-8")}
        tests: dict[str, str] = {}
        for path, text in files.items():
            text = with_sorted_imports(text) if path.endswith(".py") else text
            folder, _, below = path.partition("/")
            if folder == "tests":
                tests[below] = text
            else:
                inside[path] = text
        return package, {package: inside, self.root / "tests/plugins" / name.package: tests}

    def install_line(self, name: PluginName, requires: Iterable[str]) -> str:
        """Return the command that installs a package and what it requires from a clone.

        Args:
            name: Kind and name of the plugin.
            requires: Distributions of this repository that the package requires.
        """
        reached: set[str] = set()
        more = set(requires)
        while more:
            reached |= more
            found = {dependency for dist in more for dependency in self._required_by(dist)}
            more = found - reached
        parts = sorted({*reached, name.distribution})
        return " ".join(("pip install .", *(f"./plugins/{_module(dist)}" for dist in parts)))

    def _required_by(self, distribution: str) -> set[str]:
        """Return the other distributions of this repository that one requires."""
        project = _project(self.root / "plugins" / _module(distribution))
        found = (_OWN_NAME.match(line) for line in project.get("dependencies", ()))
        return {name[0] for name in found if name} - {CORE_DISTRIBUTION}


def checkout_of(parent: Path) -> Checkout | None:
    """Return the repository whose packages are in a folder; None for any other folder."""
    folder = parent.resolve()
    root = folder.parent
    if folder.name != "plugins" or not (root / "dev.py").is_file():
        return None
    project = _project(root)
    if project.get("name") != CORE_DISTRIBUTION:
        return None
    return Checkout(root, project["version"])


def _project(folder: Path) -> dict[str, Any]:
    file = folder / "pyproject.toml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return tomllib.loads(text).get("project", {})


def _module(distribution: str) -> str:
    return distribution.replace("-", "_")


def with_sorted_imports(source: str) -> str:
    """Sort the imports at the top of a module as lint of the repository wants them.

    There all packages of agl are first-party. Elsewhere only the new package is. The templates have
    no comments among their imports.
    """
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif imports or not isinstance(node, ast.Expr):  # the docstring
            break
    if not imports:
        return source
    lines = source.splitlines()
    texts = {_order(node): "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in imports}
    sections = groupby(sorted(texts), key=lambda order: order[0])
    blocks = ("\n".join(texts[order] for order in section) for _, section in sections)
    end = imports[-1].end_lineno or 0
    lines[imports[0].lineno - 1 : end] = "\n\n".join(blocks).splitlines()
    return "\n".join(lines) + "\n"


def _order(node: ast.Import | ast.ImportFrom) -> tuple[int, bool, str]:
    """Return the section of an import, and its place there: `import a` before `from a import b`."""
    is_from = isinstance(node, ast.ImportFrom)
    module = str(node.module) if is_from else node.names[0].name
    top = module.partition(".")[0]
    if top == "__future__":
        section = 0
    elif top in sys.stdlib_module_names:
        section = 1
    else:
        section = 3 if top.startswith("agl_") else 2
    return section, is_from, module
