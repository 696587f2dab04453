"""Chooses the test files that a change can break, each with the reason.

The tests of a changed part are all chosen. Of the other parts those are chosen that used a changed
file in the recorded run. Where the record cannot know, a rule errs on the side of running: each is
one function below, named in :data:`RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from devtools.gate.changes import PROJECT, Changes
from devtools.gate.parts import Part, Tree, module_of
from devtools.gate.test_map import TestMap

SHARED_BY_ALL_TESTS = ("tests/conftest.py",)
CONCERNS_NO_TEST = (
    *("CHANGELOG.md", "LICENSE", "SECURITY.md", ".gitignore"),
    *(".ci/full_run.toml", ".ci/test_map.json"),
)
"""Files that change no test's outcome; tests that read one are found by the record."""
TEXT_FOLDERS = ("examples/", "deploy/", "tests/envs/", "tests/frameworks/", "plugins/")
"""Folders that tests name in their text, mostly to start a program there."""


@dataclass(frozen=True)
class Context:
    """What the rules look at.

    Attributes:
        tree: The repository's files.
        tests: The recorded run.
        changes: What differs.
    """

    tree: Tree
    tests: TestMap
    changes: Changes

    def changed_parts(self) -> dict[str, Part]:
        """Return the parts that a changed file belongs to, by name.

        The README of a package is a page, and changes nothing that its tests look at.
        """
        files = (f for f in self.files() if not (f.startswith("plugins/") and f.endswith(".md")))
        return self._with_core(filter(None, map(self.tree.part_of, files)))

    def changed_sources(self) -> dict[str, Part]:
        """Return the packages of which more than tests and pages changed, by name."""
        files = (f for f in self.files() if not f.startswith("tests/") and not f.endswith(".md"))
        parts = filter(None, map(self.tree.part_of, files))
        return self._with_core(part for part in parts if part.package)

    def _with_core(self, parts: Iterable[Part]) -> dict[str, Part]:
        """Return parts by name, with the core if its metadata in pyproject.toml changed."""
        found = {part.name: part for part in parts}
        if "project" in self.changes.tables:
            found["agl_core"] = self.tree.parts["agl_core"]
        return found

    def files(self) -> Iterator[str]:
        """Yield the changed files that can change a test's outcome."""
        for file in self.changes.files:
            if file not in CONCERNS_NO_TEST:
                yield file


Chosen = Iterator[tuple[str, str]]
Rule = Callable[[Context], Chosen]


def own_tests(context: Context) -> Chosen:
    """All tests of a changed part."""
    for part in context.changed_parts().values():
        for test in context.tree.tests_of(part):
            yield test, f"{part.name} changed"


def recorded_users(context: Context) -> Chosen:
    """Tests that executed or read a changed file, or listed the folder of a new or deleted one."""
    for file in context.files():
        for test in context.tests.users_of(file):
            yield test, f"uses {file}"
    for file in context.changes.moved:
        for test in context.tests.listers_of(file):
            yield test, f"lists the folder of {file}"


def users_of_the_folder(context: Context) -> Chosen:
    """Tests that used a file of the same folder, if no test of its own part used the changed file.

    It is new, or holds constants or data, or runs in processes that are killed: the record does
    not know who uses it.
    """
    for file in context.files():
        if "/src/" not in file and not file.startswith("agl_core/"):
            continue
        part = context.tree.part_of(file)
        if any(context.tree.test_files.get(t) == part for t in context.tests.users_of(file)):
            continue
        folder = f"{Path(file).parent.as_posix()}/"
        for test in context.tests.users_below(folder):
            yield test, f"uses {folder}, where {Path(file).name} is not recorded"


def users_of_later_callers(context: Context) -> Chosen:
    """Tests that used a module which has changed since the record and imports a changed one.

    It may call the changed module only since then.
    """
    changed = {file: name for file in context.files() if (name := module_of(file))}
    if not changed:
        return
    for caller in context.tree.sources:
        if caller in changed or context.tests.is_current(caller, context.tree.text(caller)):
            continue
        imported = context.tree.imports(caller)
        for file, module in changed.items():
            # A package often gives names of its modules.
            if imported.isdisjoint((module, module.rpartition(".")[0])):
                continue
            known = context.tests.users_of(caller)
            for test in known or context.tests.users_below(f"{Path(caller).parent.as_posix()}/"):
                yield test, f"uses {caller}, which may call {file} since the record"


def importers_of_helpers(context: Context) -> Chosen:
    """Tests that import a changed module of the tests."""
    for file in context.files():
        if file.startswith("tests/") and file.endswith(".py"):
            for test in context.tree.importers(file):
                yield test, f"imports {file}"


def all_that_share(context: Context) -> Chosen:
    """Every test, if what all of them share changed: the settings of pytest, the fixtures."""
    shared = [file for file in SHARED_BY_ALL_TESTS if file in context.changes.files]
    shared += ["[tool.pytest]"] if "tool.pytest" in context.changes.tables else []
    for file in shared:
        for test in context.tree.test_files:
            yield test, f"shares {file}"


def mentions(context: Context) -> Chosen:
    """Tests whose text names the folder of a changed file: they start a program there."""
    for file in context.files():
        if not file.startswith(TEXT_FOLDERS) or "/src/" in file:
            continue
        folder = "/".join(file.split("/")[:2])
        for test in context.tree.test_files:
            if folder in context.tree.text(test):
                yield test, f"names {folder}"


def unrecorded(context: Context) -> Chosen:
    """Tests that have changed since the record, or fork, if their part requires a changed one."""
    changed = set(context.changed_sources())
    for test, part in context.tree.test_files.items():
        needed = sorted(part.requires & changed)
        if not needed:
            continue
        if not context.tests.is_current(test, context.tree.text(test)):
            yield test, f"is not in the recorded run as it is, and may use {needed[0]}"
        elif context.tests.tests[test].forks:
            yield test, f"forks, and may use {needed[0]}"


def unknown_files(context: Context) -> Chosen:
    """Every test, if no part has a changed file and no rule knows it."""
    for file in context.files():
        known = context.tree.part_of(file) or file in (*SHARED_BY_ALL_TESTS, PROJECT)
        if known or file.startswith("tests/") or file.endswith((".md", ".txt")):
            continue
        for test in context.tree.test_files:
            yield test, f"nobody knows what {file} concerns"


RULES: Mapping[str, Rule] = {
    "of changed parts": own_tests,
    "that import a changed helper": importers_of_helpers,
    "that use a changed file": recorded_users,
    "that use its folder": users_of_the_folder,
    "that use a later caller": users_of_later_callers,
    "that name a changed file": mentions,
    "not recorded as they are, or forking": unrecorded,
    "that share what changed": all_that_share,
    "for a file that nobody knows": unknown_files,
}
"""The rules by what a plan says of the tests that each chooses, in the order of their priority."""


class Reason(NamedTuple):
    """Why a test file is chosen: the name of the rule, and what it found."""

    rule: str
    found: str


def choose(context: Context) -> Mapping[str, Reason]:
    """Return the chosen test files with the first reason of each, in order of their paths."""
    chosen: dict[str, Reason] = {}
    for name, rule in RULES.items():
        for test, found in rule(context):
            if test in context.tree.test_files:  # it may be gone since the record
                chosen.setdefault(test, Reason(name, found))
    return dict(sorted(chosen.items()))
