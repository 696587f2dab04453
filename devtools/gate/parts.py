"""Divides the repository into parts: what changes together, and the tests of each part.

A part is a package, an example, or one of the folders beside them. A part requires the packages
that it installs or imports; whatever has no list of requirements may use everything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from devtools import packages, suites
from devtools.packages import IMPORTED_PACKAGE, Package
from devtools.process import ROOT

TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")
"""Names of the files that pytest collects."""
SLOW_MARK = re.compile(r"mark\.slow\b")
SUITE_CLASS = re.compile(r"^class \w+\([^)]*(?:Suite|Tests)\b", re.MULTILINE)
PLAIN_PARTS: Mapping[str, tuple[str, ...]] = {
    "docs": ("docs/", "tests/docs/", "devtools/docs_site/", "mkdocs.yml"),
    "devtools": ("devtools/", "tests/devtools/", "dev.py", ".ci/", "Makefile", ".pre-commit"),
    "deploy": ("deploy/",),
    "e2e": ("tests/e2e/",),
    "benchmark": ("tests/benchmark/",),
    "frameworks": ("tests/frameworks/",),
    "examples": ("examples/README.md", "tests/examples/"),
}
"""Parts that are not packages: the beginnings of their files' paths."""
ANYTHING = frozenset({"docs", "e2e", "examples"})
"""Parts that may use every package; a recorded run says which of their tests use what."""


@dataclass(frozen=True)
class Part:
    """A package, an example or a folder of tools, with its tests.

    Attributes:
        name: The label of a package, or the folder's name: ``agl_judge``, ``examples/sql_agent``.
        places: Beginnings of the paths of its files.
        requires: Names of the packages that it requires, directly or not.
        package: The package; None for another part.
    """

    name: str
    places: tuple[str, ...]
    requires: frozenset[str] = frozenset()
    package: Package | None = None

    @property
    def heavy(self) -> bool:
        return self.package is not None and self.package.heavy


class Tree:
    """The files of the repository, by part.

    Args:
        root: The root of the repository.
        files: Paths of its files, relative to the root.
    """

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.root = root
        self.files = sorted(files)
        self._texts: dict[str, str] = {}
        self._imports: dict[str, set[str]] = {}

    @cached_property
    def parts(self) -> dict[str, Part]:
        """All parts by name. A file belongs to the part with the longest fitting place."""
        required = {p.label: _required_by(p) for p in packages.everything()}
        found = [Part(p.label, _places_of(p), required[p.label], p) for p in packages.everything()]
        everything = frozenset(required)
        for name, places in PLAIN_PARTS.items():
            found.append(Part(name, places, everything if name in ANYTHING else frozenset()))
        for example in sorted({f.split("/")[1] for f in self.files if f.count("/") > 1}):
            places = (f"examples/{example}/", f"tests/examples/{example}/")
            mine = [f for f in self.files if f.startswith(places) and f.endswith(".py")]
            if any(f.startswith("examples/") for f in mine):
                names = {name for f in mine for name in IMPORTED_PACKAGE.findall(self.text(f))}
                names &= everything
                required_here = frozenset(names.union(*(required[name] for name in names)))
                found.append(Part(f"examples/{example}", places, required_here))
        return {part.name: part for part in found}

    def part_of(self, file: str) -> Part | None:
        """Return the part that a file belongs to; None for one that concerns no part alone."""
        fitting = [
            (len(place), part.name)
            for part in self.parts.values()
            for place in part.places
            if file.startswith(place)
        ]
        return self.parts[max(fitting)[1]] if fitting else None

    def text(self, file: str) -> str:
        """Return the text of a file; a file that is gone has none."""
        if file not in self._texts:  # several rules look at each test
            self._texts[file] = text_of(file, self.root)
        return self._texts[file]

    @cached_property
    def test_files(self) -> dict[str, Part]:
        """Every file with tests, and the part whose tests they are."""
        return {
            file: part
            for file in self.files
            if file.startswith("tests/") and TEST_FILE.fullmatch(Path(file).name)
            if (part := self.part_of(file))
        }

    def tests_of(self, part: Part) -> list[str]:
        return [file for file, owner in self.test_files.items() if owner == part]

    def is_slow(self, test: str) -> bool:
        """Whether some tests of a file are marked ``slow``."""
        return bool(SLOW_MARK.search(self.text(test)))

    def has_suite(self, test: str) -> bool:
        """Whether a file seems to hold a component to a conformance suite."""
        return bool(SUITE_CLASS.search(self.text(test)))

    @cached_property
    def _test_imports(self) -> dict[str, set[str]]:
        """The test modules that each test module imports, as paths."""
        return {
            file: {
                f"{n.replace('.', '/')}.py" for n in self.imports(file) if n.startswith("tests.")
            }
            for file in self.files
            if file.startswith("tests/") and file.endswith(".py")
        }

    def imports(self, file: str) -> set[str]:
        """Return the dotted names that a Python file imports."""
        if file not in self._imports:
            self._imports[file] = _imported_modules(self.text(file))
        return self._imports[file]

    @cached_property
    def sources(self) -> dict[str, str]:
        """The modules of all packages: the path of each, and its dotted name."""
        return {file: name for file in self.files if (name := module_of(file))}

    def importers(self, helper: str) -> set[str]:
        """Return the test files that import a module of the tests, directly or not."""
        reached, more = {helper}, {helper}
        while more:
            more = {f for f, names in self._test_imports.items() if names & more} - reached
            reached |= more
        return {file for file in reached if file in self.test_files}


def text_of(file: str, root: Path = ROOT) -> str:
    """Return the text of a file; a file that is gone has none."""
    path = root / file
    return path.read_text(errors="replace") if path.is_file() else ""


def has_heavy_tests(part: Part) -> bool:
    return part.package is not None and suites.has_heavy_tests(part.package)


def _places_of(package: Package) -> tuple[str, ...]:
    if package == packages.core():
        return ("agl_core/", "tests/core/", "requirements.txt")
    return (f"plugins/{package.label}/", f"tests/plugins/{package.label}/")


def _required_by(package: Package) -> frozenset[str]:
    """Return the labels of the packages that a package or its tests require, directly or not."""
    by_name = {p.name: p for p in packages.everything()}
    reached: set[str] = set()
    more = {name for name in package.own_requirements if name in by_name}
    while more:
        reached |= more
        found = {name for dist in more for name in by_name[dist].own_requirements}
        more = (found & set(by_name)) - reached
    return frozenset(by_name[name].label for name in reached)


def module_of(file: str) -> str:
    """Return the dotted name of a module of a package; empty for any other file."""
    _, source, below = file.partition("/src/")
    below = below if source else file
    if not file.endswith(".py") or not (source or file.startswith(f"{packages.CORE_MODULE}/")):
        return ""
    return below.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported_modules(source: str) -> set[str]:
    """Return the dotted names that a source imports; one that is not Python imports nothing.

    `from a import b` names a module `a.b`, or what is in `a`. Nothing here imports relatively.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
