"""The tables of docs/migration.md: each public name of 0.3 is where they say, or the page helps."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import agl_legacy
from agl_core.plugins import missing_package
from agl_legacy.names import HERE, NOT_HERE
from tests.tables import check_each

PAGE = (Path(__file__).parents[3] / "docs/migration.md").read_text()
NAMES = Path(__file__).with_name("names_of_0_3.txt")
"""What the modules of 0.3.0 define or export, but for type variables: a module a line."""
ARGUMENTS = Path(__file__).with_name("arguments_of_0_3.txt")
"""Parameters of the functions and constructors of 0.3.0 that are served: one of them a line."""
ELSEWHERE = (
    "trainer_cls",
    "daemon_cls",
    "trace_aggregator",
    "--mongo-uri",
    "agl store --backend memory",
)
"""What old code may use of packages that may be absent here, of configurations and of commands."""


def part(heading: str) -> str:
    """Return the text below a heading, up to the next one of its level."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> Iterator[list[list[str]]]:
    """Yield the words in code of each cell, row by row."""
    for line in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")]
        if all(cells):
            yield cells


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def served_by_page() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for (module,), (home,), names in rows(part("Every public name")):
        found[module] |= dict.fromkeys(names, home)
    return found


def missing_by_page() -> dict[str, dict[str, set[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for section in part("What is not here").split("\n### ")[1:]:
        heading, _, text = section.partition("\n")
        found[anchor(heading)] = {module: set(names) for (module,), names in rows(text)}
    return found


@pytest.fixture(autouse=True)
def served() -> Iterator[None]:
    agl_legacy.install()
    yield
    agl_legacy.uninstall()


def test_the_page_has_the_tables_of_the_package() -> None:
    assert served_by_page() == {module: names for module, names in HERE.items() if names}
    assert missing_by_page() == {
        section: {module: set(names.split()) for module, names in modules.items()}
        for section, modules in NOT_HERE.items()
    }


def test_each_name_is_the_object_of_agl() -> None:
    served = served_by_page()
    table = ((module, name, home) for module in served for name, home in served[module].items())
    check_each(is_the_object_of_agl, table)


def is_the_object_of_agl(module: str, name: str, home: str) -> None:
    scope: dict[str, object] = {}
    statement = f"from {module} import {name}"
    package = home.partition(".")[0]
    if find_spec(package) is None:
        said = str(missing_package(name, package.replace("_", "-")))
        with pytest.raises(ImportError, match=re.escape(said)):
            exec(statement, scope)
        return
    try:
        wanted = getattr(import_module(home), name)
    except (ImportError, AttributeError) as error:  # a package that is not installed, or a library
        with pytest.raises(ImportError, match=re.escape(str(error))):
            exec(statement, scope)
    else:
        exec(statement, scope)
        assert scope[name] is wanted, name


def test_a_name_that_is_not_here_names_its_section() -> None:
    def check(section: str, module: str, name: str) -> None:
        for statement in (f"from {module} import {name}", f"import {module}.{name}"):
            with pytest.raises(ImportError, match=rf"see docs/migration\.md#{section}$"):
                exec(statement)

    check_each(
        check,
        (
            (section, module, name)
            for section, modules in missing_by_page().items()
            for module, names in modules.items()
            for name in sorted(names)
        ),
    )


def test_each_section_that_an_error_names_is_on_the_page() -> None:
    anchors = {anchor(title) for title in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)}
    assert {*NOT_HERE, "every-public-name"} <= anchors


def test_each_name_of_0_3_is_served_or_has_a_line() -> None:
    served, refused = served_by_page(), defaultdict[str, set[str]](set)
    for modules in missing_by_page().values():
        for module, names in modules.items():
            refused[module] |= names

    def check(module: str, name: str) -> None:
        assert name in served[module] or name in refused[module], f"{module}.{name} has no line"

    lines = (line.partition(": ") for line in NAMES.read_text().splitlines())
    check_each(check, ((module, name) for module, _, names in lines for name in names.split()))


def test_each_argument_of_0_3_is_taken_or_has_a_line() -> None:
    def check(module: str, name: str, known: list[str]) -> None:
        try:
            made = getattr(import_module(module), name)
        except AttributeError:  # its package is not installed
            return
        parameters = inspect.signature(made).parameters
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return
        for argument in set(known) - set(parameters):
            line = rf"^\|.*`[^`]*\b{argument}\b[^`]*`.*\|$"
            assert re.search(line, PAGE, re.MULTILINE), f"{name}({argument}=) has no line"

    lines = (re.split("[: ]+", line) for line in ARGUMENTS.read_text().splitlines())
    check_each(check, ((module, name, known) for module, name, *known in lines))


@pytest.mark.parametrize("word", ELSEWHERE)
def test_what_cannot_be_looked_up_here_has_a_line(word: str) -> None:
    assert re.search(rf"^\|.*`[^`]*{word}[^`]*`.*\|$", PAGE, re.MULTILINE)
