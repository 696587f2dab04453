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
from devtools.gate.test_map import TestMap, Used

SHARED_FILES = ("conftest.py", "pytest.ini")
"""Names of files that all tests below their folder depend on."""
SHARED_TABLES = frozenset({"project", "build-system", "tool.pytest", "tool.hatch"})
"""Tables of the root `pyproject.toml` that all tests or their environments depend on."""
CONCERNS_NO_PART = (
    *("AGENTS.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", ".gitignore"),
    *(".ci/full_run.toml", ".ci/test_map.json"),
)
"""Files that change nothing that a part does; the record knows the tests that read one."""
TEXT_FOLDERS = ("examples/", "deploy/", "tests/envs/", "tests/frameworks/", "plugins/")
"""Folders that tests name in their text, mostly to start a program there."""
KNOWN_BY_OTHER_RULES = ("tests/envs/", "tests/processes.py", "tests/tables.py")
"""Files of no part whose users are found by their imports, or by the plan."""

_WRONG_COMPONENTS = (
    "plugins/agl_testing/src/",
    *(f"tests/plugins/agl_testing/{name}" for name in ("wrong/", "suite_runs.py")),
)
ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "tests/plugins/agl_testing/test_faults.py": (
        *(*_WRONG_COMPONENTS, "tests/plugins/agl_testing/faults/"),
        "tests/plugins/agl_testing/test_faults.py",
    ),
    "tests/plugins/agl_testing/test_wrong_fakes.py": (
        *_WRONG_COMPONENTS,
        "tests/plugins/agl_testing/test_wrong_fakes.py",
    ),
}
"""Test files of minutes that use nearly every package and test one: the beginnings of the paths
that they run for. No rule chooses them for another change; the deep suites have them, too."""

OF_ALL_CODE = ("tests/docs/test_plugin_api_page.py", "tests/docs/test_settings_page.py")
"""Short tests of pages that are written from the code of all packages. What another test file of
their process had imported before leaves no trace of them in the record."""


@dataclass(frozen=True)
class Context:
    """Input of the rules.

    Attributes:
        tree: The repository's files.
        tests: The recorded run.
        changes: The differences from the last gate.
    """

    tree: Tree
    tests: TestMap
    changes: Changes

    def is_current(self, file: str) -> bool:
        """Whether the text of a file is the recorded one."""
        return self.tests.is_current(file, self.tree.text(file))

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
        """Yield the changed files that can change what a part does."""
        for file in self.changes.files:
            if file not in CONCERNS_NO_PART and file not in self.changes.descriptive:
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
    for file in context.changes.files:
        for test in context.tests.users_of(file):
            yield test, f"uses {file}"
    for file in context.changes.moved:
        for test in context.tests.listers_of(file):
            yield test, f"lists the folder of {file}"


def users_of_the_folder(context: Context) -> Chosen:
    """Tests that used a file of the same folder, if no test of its own part used the changed file.

    It is new, or holds constants or data, or runs in processes that are killed: the record does
    not know who uses it. Where nothing of a folder is recorded, its parent folder is used.
    """
    for file in context.files():
        if "/src/" not in file and not file.startswith("agl_core/"):
            continue
        part = context.tree.part_of(file)
        if any(context.tree.test_files.get(t) == part for t in context.tests.users_of(file)):
            continue
        for parent in Path(file).parents[: -2 if file.startswith("agl_core/") else -4]:
            users = context.tests.users_below(f"{parent.as_posix()}/")
            for test in users:
                yield test, f"uses {parent.as_posix()}/, where {Path(file).name} is not recorded"
            if users:
                break


def users_of_the_package(context: Context) -> Chosen:
    """Tests that used a package whose requirements, entry points or settings changed."""
    for file in context.files():
        if file.startswith("plugins/") and file.endswith("/pyproject.toml"):
            for test in context.tests.users_below(f"{Path(file).parent.as_posix()}/src/"):
                yield test, f"uses a package of {file}"


def users_of_importers(context: Context) -> Chosen:
    """Tests that used or are an importer of a module of which more than functions changed.

    What runs at import leaves no trace in the record: constants, fields, classes.
    """
    modules = set(filter(None, map(module_of, context.changes.reshaped)))
    # A package gives names of its modules.
    names = modules | {module.rpartition(".")[0] for module in modules}
    for importer in [*context.tree.sources, *context.tree.test_files] if names else ():
        for name in sorted(context.tree.imports(importer) & names):
            why = f"uses {importer}, which imports {name}"
            for test in {importer} | context.tests.users_of(importer):
                yield test, why


def users_of_later_callers(context: Context) -> Chosen:
    """Tests that used a module which has changed since the record, if it may call what changed.

    Only its package's own code and its requirements can be what it calls since then.
    """
    changed = set(context.changed_sources())
    if not changed:
        return
    for caller in context.tree.sources:
        part = context.tree.part_of(caller)
        if part is None or not changed & {part.name, *part.requires}:
            continue
        if caller in context.changes.files or context.is_current(caller):
            continue
        folder = f"{Path(caller).parent.as_posix()}/"
        for test in context.tests.users_of(caller) or context.tests.users_below(folder):
            yield test, f"uses {caller}, which may call more since the record"


def importers_of_helpers(context: Context) -> Chosen:
    """Tests that import a changed module of the tests."""
    for file in context.files():
        if file.startswith("tests/") and file.endswith(".py"):
            for test in context.tree.importers(file):
                yield test, f"imports {file}"


def all_that_share(context: Context) -> Chosen:
    """The tests that share a changed conftest.py or pytest.ini, or a table of pyproject.toml."""
    for file in context.files():
        path = Path(file)
        if path.name in SHARED_FILES and path.parts[0] == "tests":
            for test in context.tree.test_files:
                if test.startswith(f"{path.parent.as_posix()}/"):
                    yield test, f"shares {file}"
    for table in sorted(SHARED_TABLES & context.changes.tables):
        for test in context.tree.test_files:
            yield test, f"shares [{table}] of {PROJECT}"


def mentions(context: Context) -> Chosen:
    """Tests whose text names the folder of a changed file: they start a program there."""
    for file in context.files():
        if not file.startswith(TEXT_FOLDERS) or "/src/" in file:
            continue
        folder = "/".join(file.split("/")[:2])
        for test in context.tree.test_files:
            if folder in context.tree.text(test):
                yield test, f"names {folder}"


def readers_of_all_code(context: Context) -> Chosen:
    """The tests of :data:`OF_ALL_CODE`, if a package changed."""
    if changed := sorted(context.changed_sources()):
        for test in OF_ALL_CODE:
            yield test, f"is of all packages; {changed[0]} changed"


def unrecorded(context: Context) -> Chosen:
    """Tests of which the record knows too little, if their part requires a changed package.

    They, or a helper or an example that they use, changed since; they fork; or no file of a package
    is recorded, as where a test starts programs in an environment of its own.
    """
    changed = set(context.changed_sources())
    for test, part in context.tree.test_files.items():
        needed = sorted(part.requires & changed)
        if not needed:
            continue
        used = context.tests.tests.get(test, Used())
        helpers = [name for name in used.files if name.startswith(("tests/", "examples/"))]
        if not all(map(context.is_current, (test, *helpers))):
            yield test, f"is new or changed since the record, and may use {needed[0]}"
        elif used.forks:
            yield test, f"forks, and may use {needed[0]}"
        elif not any(map(module_of, used.files)):
            yield test, f"is recorded without any package, and may use {needed[0]}"


def unknown_files(context: Context) -> Chosen:
    """Every test, if no part has a changed file and no rule knows it."""
    for file in context.files():
        if context.tree.part_of(file) or file == PROJECT or file.startswith(KNOWN_BY_OTHER_RULES):
            continue
        if Path(file).name in SHARED_FILES:
            continue
        if file.endswith((".md", ".txt")) and not file.startswith("tests/"):
            continue
        for test in context.tree.test_files:
            yield test, f"{file} belongs to no part"


RULES: Mapping[str, Rule] = {
    "of changed parts": own_tests,
    "that import a changed helper": importers_of_helpers,
    "that use a changed file": recorded_users,
    "that use its folder": users_of_the_folder,
    "that use its package": users_of_the_package,
    "that use what imports it": users_of_importers,
    "that use a later caller": users_of_later_callers,
    "that name a changed file": mentions,
    "of pages written from all code": readers_of_all_code,
    "of which the record knows too little": unrecorded,
    "that share what changed": all_that_share,
    "for a file that belongs to no part": unknown_files,
}
"""The rules in order of priority; a plan describes the tests that a rule chooses by its key."""


class Reason(NamedTuple):
    """Why a test file is chosen: the name of the rule, and what it found."""

    rule: str
    found: str


def choose(context: Context) -> Mapping[str, Reason]:
    """Return the chosen test files with the first reason of each, in order of their paths."""
    chosen: dict[str, Reason] = {}
    left_out = not_due(context)
    for name, rule in RULES.items():
        for test, found in rule(context):
            # It may be gone since the record.
            if test in context.tree.test_files and test not in left_out:
                chosen.setdefault(test, Reason(name, found))
    return dict(sorted(chosen.items()))


def not_due(context: Context) -> list[str]:
    """Return the test files of :data:`ONLY_FOR` that this change is not for."""
    files = tuple(context.files())
    return [
        test
        for test, places in ONLY_FOR.items()
        if test in context.tree.test_files and not any(file.startswith(places) for file in files)
    ]
