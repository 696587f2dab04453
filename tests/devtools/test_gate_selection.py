"""Which tests a change chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from devtools.gate.changes import Changes, different_tables, shape
from devtools.gate.parts import Part, Tree
from devtools.gate.selection import OF_ALL_CODE, ONLY_FOR, Context, choose, not_due
from devtools.gate.test_map import TestMap, Used, digest
from devtools.process import ROOT

BASE = "plugins/agl_base/src/agl_base/base.py"
IMPORTED = "plugins/agl_other/src/agl_other/imported.py"
OTHER = "plugins/agl_other/src/agl_other/other.py"
WRONG_FAKES = "tests/plugins/agl_testing/test_wrong_fakes.py"
FILES: Mapping[str, str] = {
    "agl_core/__init__.py": '__version__ = "0.1.0"\n',
    "agl_core/ids.py": "",
    "agl_core/store/engine.py": "from agl_other import imported\n",
    IMPORTED: "",
    BASE: "",
    "plugins/agl_base/src/agl_base/words.toml": "",
    OTHER: "",
    "examples/shop/main.py": "import agl_base\n",
    "deploy/compose.yaml": "",
    "docs/page.md": "",
    "CHANGELOG.md": "",
    "mystery.bin": "",
    "tests/conftest.py": "",
    "tests/processes.py": "",
    "tests/core/test_ids.py": "",
    "tests/core/held.py": "",
    "tests/e2e/test_compose.py": 'FILE = "deploy/compose.yaml"\n',
    "tests/examples/shop/test_shop.py": "import agl_base\n",
    "tests/plugins/agl_base/test_base.py": "",
    "tests/plugins/agl_user/helper.py": "from tests.core.held import x\n",
    "tests/plugins/agl_user/test_user.py": "from tests.plugins.agl_user import helper\n",
    "tests/plugins/agl_user/test_engine.py": "from tests.processes import is_running\n",
    "tests/plugins/agl_other/test_other.py": "",
}
ALL = {name for name in FILES if "/test_" in name}
TESTS = TestMap(
    {
        "tests/core/test_ids.py": Used(frozenset({"agl_core/ids.py"})),
        "tests/e2e/test_compose.py": Used(frozenset({"agl_core/__init__.py"})),
        "tests/examples/shop/test_shop.py": Used(frozenset({BASE})),
        "tests/plugins/agl_base/test_base.py": Used(
            frozenset({BASE, "agl_core/ids.py"}), folders=frozenset({"examples/shop"})
        ),
        "tests/plugins/agl_user/test_engine.py": Used(frozenset({"agl_core/store/engine.py"})),
        "tests/plugins/agl_user/test_user.py": Used(
            frozenset({"docs/page.md", "agl_core/__init__.py"})
        ),
        "tests/plugins/agl_other/test_other.py": Used(frozenset({OTHER, IMPORTED})),
    },
    {name: digest(text) for name, text in FILES.items()},
)


FORKS = Used(frozenset({"agl_core/__init__.py"}), forks=True)


def recorded(tests: Mapping[str, Used], **states: str) -> TestMap:
    """Return the record with other tests, and other states of files."""
    return TestMap(tests, {**TESTS.digests, **states})


Choose = Callable[..., set[str]]


@pytest.fixture
def chosen(tree: Path) -> Choose:
    """Return what changed files choose, as short names: ``user`` for ``test_user.py``."""
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)

    def of(
        *files: str,
        tests: TestMap = TESTS,
        tables: frozenset[str] = frozenset(),
        reshaped: frozenset[str] = frozenset(),
    ) -> set[str]:
        known = {*FILES, *(file for file in files if (tree / file).exists())}
        moved = frozenset(file for file in files if file not in FILES)
        changes = Changes("base", files, moved, reshaped, tables)
        found = choose(Context(Tree(tree, known), tests, changes))
        return {Path(test).stem.removeprefix("test_") for test in found}

    return of


EVERY = {"ids", "compose", "shop", "base", "user", "engine", "other"}


@pytest.mark.parametrize(
    ("file", "names"),
    [
        pytest.param(BASE, {"base", "shop"}, id="its own tests, and those that used the file"),
        pytest.param(OTHER, {"other"}, id="no other test uses it"),
        pytest.param("agl_core/ids.py", {"ids", "base"}, id="the core"),
        pytest.param("agl_core/store/engine.py", {"ids", "engine"}, id="a room of the core"),
        pytest.param("docs/page.md", {"user"}, id="a page that a test reads"),
        pytest.param("deploy/compose.yaml", {"compose"}, id="a file that a test names"),
        pytest.param("tests/core/held.py", {"ids", "user"}, id="a helper, through another helper"),
        pytest.param("tests/processes.py", {"engine"}, id="a helper of all"),
        pytest.param("examples/shop/main.py", {"shop"}, id="an example"),
        pytest.param("tests/plugins/agl_user/test_user.py", {"user", "engine"}, id="a test"),
        pytest.param("CHANGELOG.md", set[str](), id="no test's business"),
        pytest.param("tests/plugins/conftest.py", {"base", "user", "engine", "other"}, id="shared"),
        pytest.param("tests/pytest.ini", EVERY, id="settings of pytest"),
        pytest.param("tests/newroom/helper.py", EVERY, id="a folder of tests that no part has"),
        pytest.param(
            "plugins/agl_base/pyproject.toml", {"base", "shop"}, id="a package's metadata"
        ),
        pytest.param("plugins/agl_base/src/agl_base/a/b/c.jinja", {"base", "shop"}, id="deep data"),
        pytest.param(".ci/full_run.toml", set[str](), id="the record itself"),
        pytest.param("tests/conftest.py", EVERY, id="what all tests share"),
        pytest.param("mystery.bin", EVERY, id="a file that belongs to no part"),
    ],
)
def test_a_changed_file_chooses(chosen: Choose, file: str, names: set[str]):
    assert chosen(file) == names


@pytest.mark.parametrize("new", ["plugins/agl_base/src/agl_base/new.py", BASE[:-7] + "words.toml"])
def test_a_file_that_the_record_does_not_know_chooses_the_users_of_its_folder(
    chosen: Choose, new: str
):
    assert chosen(new) == {"base", "shop"}


def test_a_new_file_chooses_the_tests_that_list_its_folder(chosen: Choose):
    assert chosen("examples/shop/new.py") == {"shop", "base"}


def test_a_test_that_is_not_recorded_runs_if_its_part_requires_what_changed(chosen: Choose):
    digests = {name: text for name, text in TESTS.digests.items() if "test_user" not in name}
    new = TestMap(TESTS.tests, digests)
    assert chosen(BASE, tests=new) == {"base", "shop", "user"}
    assert chosen(OTHER, tests=new) == {"other"}


def test_a_test_that_changed_since_the_record_runs_likewise(chosen: Choose):
    changed = recorded(TESTS.tests, **{"tests/plugins/agl_user/test_user.py": "other"})
    assert chosen(BASE, tests=changed) == {"base", "shop", "user"}


def test_a_test_that_forks_runs_likewise(chosen: Choose):
    forks = recorded({**TESTS.tests, "tests/plugins/agl_user/test_user.py": FORKS})
    assert chosen(BASE, tests=forks) == {"base", "shop", "user"}
    # What forks may run the sources of its requirements, and neither their tests nor their pages.
    assert chosen("tests/plugins/agl_base/test_base.py", tests=forks) == {"base"}
    assert chosen("plugins/agl_base/README.md", tests=forks) == set()


@pytest.mark.parametrize("state", ["other", None])
def test_the_users_of_a_module_that_changed_since_the_record_run_likewise(
    chosen: Choose, state: str | None
):
    caller = BASE
    digests = {name: text for name, text in TESTS.digests.items() if name != caller}
    stale = TestMap(TESTS.tests, digests | ({caller: state} if state else {}))
    assert chosen("agl_core/ids.py", tests=stale) == {"ids", "base", "shop"}
    assert chosen("agl_core/ids.py") == {"ids", "base"}
    assert chosen(OTHER, tests=stale) == {"other"}, "which the caller cannot call"


@pytest.mark.parametrize(
    ("file", "due"),
    [
        (BASE, False),
        ("tests/conftest.py", False),
        ("tests/plugins/agl_testing/test_other.py", False),
        ("plugins/agl_testing/README.md", False),
        ("plugins/agl_testing/src/agl_testing/store/load.py", True),
        ("tests/plugins/agl_testing/wrong/stores.py", True),
        (WRONG_FAKES, True),
    ],
)
def test_wrong_fakes_run_only_for_the_kit_and_for_themselves(
    tree: Path, file: str, due: bool, monkeypatch: pytest.MonkeyPatch
):
    (tree / WRONG_FAKES).parent.mkdir(parents=True)
    (tree / WRONG_FAKES).write_text("")
    monkeypatch.setattr(Tree, "part_of", lambda *_: Part("agl_testing", ("tests/plugins/",)))
    tests = recorded({WRONG_FAKES: Used(frozenset({file}))})
    context = Context(Tree(tree, [WRONG_FAKES]), tests, Changes("base", (file,)))
    assert choose(context).keys() == ({WRONG_FAKES} if due else set())
    assert not_due(context) == ([] if due else [WRONG_FAKES])


def test_the_tests_that_run_only_for_some_changes_exist():
    for test, places in ONLY_FOR.items():
        assert (ROOT / test).exists()
        assert all((ROOT / place).exists() for place in places)


@pytest.mark.parametrize("test", OF_ALL_CODE)
def test_pages_written_from_all_code_are_tested_with_every_package(tree: Path, test: str):
    assert (ROOT / test).exists()
    for name in (test, OTHER):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")

    def chosen(file: str) -> set[str]:
        changes = Changes("base", (file,))
        return set(choose(Context(Tree(tree, [test, OTHER]), recorded({}), changes)))

    assert chosen(OTHER) == {test}
    assert chosen("CHANGELOG.md") == set()


def test_a_test_that_is_gone_is_not_chosen(chosen: Choose):
    gone = {**TESTS.tests, "tests/plugins/agl_user/test_gone.py": Used(frozenset({BASE}))}
    assert chosen(BASE, tests=recorded(gone)) == {"base", "shop"}


def test_a_test_without_a_recorded_package_runs_likewise(chosen: Choose):
    bare = recorded({**TESTS.tests, "tests/plugins/agl_user/test_user.py": Used()})
    assert chosen(BASE, tests=bare) == {"base", "shop", "user"}
    assert chosen(OTHER, tests=bare) == {"other"}


def test_a_test_runs_likewise_if_its_helper_changed_since_the_record(chosen: Choose):
    helped = Used(frozenset({"agl_core/__init__.py", "tests/plugins/agl_user/helper.py"}))
    tests = {**TESTS.tests, "tests/plugins/agl_user/test_user.py": helped}
    assert chosen(BASE, tests=recorded(tests)) == {"base", "shop"}
    changed = recorded(tests, **{"tests/plugins/agl_user/helper.py": "other"})
    assert chosen(BASE, tests=changed) == {"base", "shop", "user"}


def test_a_module_of_which_more_than_functions_changed_chooses_the_users_of_importers(
    chosen: Choose,
):
    assert chosen(IMPORTED, reshaped=frozenset({IMPORTED})) == {"other", "engine"}
    assert chosen(IMPORTED) == {"other"}


def test_the_settings_of_pytest_choose_everything_and_those_of_ruff_nothing(chosen: Choose):
    assert chosen("pyproject.toml", tables=frozenset({"tool.pytest"})) == EVERY
    assert chosen("pyproject.toml", tables=frozenset({"tool.ruff"})) == set()
    assert chosen("pyproject.toml", tables=frozenset({"project"})) == EVERY


def test_tables_that_differ():
    before = {"project": {"name": "a"}, "tool": {"ruff": {"x": 1}, "pytest": {"y": 1}}}
    after = {"project": {"name": "a"}, "tool": {"ruff": {"x": 2}, "new": {}}, "extra": {}}
    assert different_tables(before, after) == {"tool.ruff", "tool.pytest", "tool.new", "extra"}
    assert different_tables(before, before) == set()
    options = {"testpaths": ["a"], "markers": ["slow: x"], "timeout": 1}
    other = {"testpaths": ["b"], "markers": ["slow: y"], "timeout": 1}
    tools = [{"tool": {"pytest": {"ini_options": each}}} for each in (options, other)]
    assert different_tables(*tools) == set()


def test_the_shape_of_a_module_is_what_runs_at_import():
    before = "A = 1\n\ndef f(x=1):\n    return 1\n"
    assert shape(before) == shape("# a comment\nA = 1\ndef f(x=1):\n    'doc'\n    return 2\n")
    assert shape(before) != shape(before.replace("A = 1", "A = 2"))
    assert shape(before) != shape(before.replace("x=1", "x=2"))
    assert shape("not python (") == "not python ("
