"""Tests of the package tools: versions and requirements."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import packages
from devtools.packages import Package
from devtools.pages import FENCE


@pytest.mark.parametrize(
    ("version", "bounds"),
    [
        ("0.1.0", ">=0.1,<0.2"),
        ("0.9.3", ">=0.9,<0.10"),
        ("1.4.2", ">=1.4,<2"),
        ("0.2.0rc1", ">=0.2.0rc1,<0.3"),
    ],
)
def test_the_bounds_of_a_version(version: str, bounds: str):
    assert packages.bounds(version) == bounds


def test_a_new_version_is_set_everywhere(tree: Path):
    assert packages.version_problems() == []
    packages.set_version("0.2.0")
    for cached in (packages.core, packages.all_plugins):
        cached.cache_clear()
    assert packages.version_problems() == []
    assert {package.version for package in packages.everything()} == {"0.2.0"}
    user = (tree / "plugins/agl_user/pyproject.toml").read_text()
    assert '"agl-core>=0.2,<0.3"' in user
    assert '"agl-base[x]>=0.2,<0.3"' in user


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("agl_core/__init__.py", "0.1.0", "0.1.1", "__version__ is not 0.1.0"),
        ("plugins/agl_user/pyproject.toml", "0.1.0", "0.1.1", "version 0.1.1, the core has 0.1.0"),
        ("plugins/agl_user/pyproject.toml", "agl-core>=0.1,<0.2", "agl-core", "agl-core should"),
        ("plugins/agl_user/pyproject.toml", "]>=0.1,<0.2", "]>=0.1", "agl-base[x]>=0.1 should"),
    ],
)
def test_a_version_that_disagrees_is_named(tree: Path, file: str, old: str, new: str, problem: str):
    path = tree / file
    path.write_text(path.read_text().replace(old, new))
    (found,) = packages.version_problems()
    assert found.startswith(file)
    assert problem in found


@pytest.mark.parametrize("version", ["1", "0.2", "v0.2.0", "0.2.0.dev1", ""])
def test_a_malformed_version_is_refused(tree: Path, version: str):
    with pytest.raises(SystemExit, match="is not a version"):
        packages.set_version(version)


def test_the_default_suite_leaves_out_heavy_packages_and_those_that_say_so(tree: Path):
    labels = [package.label for package in packages.all_plugins() if package.tested_by_default]
    assert labels == ["agl_user"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("havy = true", "havy is not one of heavy, "),
        ('heavy = "yes"', "heavy = 'yes' is not a bool"),
        ('uses_undocumented = "yes"', "uses_undocumented = 'yes' is not a list"),
    ],
)
def test_a_wrong_setting_is_named(tree: Path, line: str, problem: str):
    assert packages.manifest_problems() == []
    file = tree / "plugins/agl_user/pyproject.toml"
    file.write_text(f"{file.read_text()}\n[tool.agl-dev]\n{line}\n")
    packages.all_plugins.cache_clear()
    (found,) = packages.manifest_problems()
    assert found.startswith(f"plugins/agl_user/pyproject.toml: [tool.agl-dev] {problem}")


def test_heavy_packages_are_not_light(tree: Path):
    assert [package.label for package in packages.light_plugins()] == ["agl_base", "agl_user"]


def test_requirements_of_requirements_come_along():
    labels = [package.label for package in packages.with_requirements(["agl"])]
    assert {"agl", "agl_store_http", "agl_serving", "agl_exec_cs"} <= set(labels)
    assert "agl_testing" not in labels


def test_a_package_may_name_its_module(tree: Path):
    file = tree / "plugins/agl_user/pyproject.toml"
    text = f'{file.read_text()}\n[tool.agl-dev]\nmodule = "agl_thing"\n'
    file.write_text(text.replace("agl-base[x]>=0.1,<0.2", "agl>=0.1"))
    packages.all_plugins.cache_clear()
    (user,) = packages.named(["agl_user"])
    assert user.module == "agl_thing"
    assert user.source == tree / "plugins/agl_user/src/agl_thing"
    assert user.own_requirements == {"agl-core", "agl"}
    (problem,) = packages.version_problems()
    assert problem.endswith("agl>=0.1 should end with >=0.1,<0.2")


class TestReadmes:
    """The programs of a package's README run with what its README installs."""

    def test_every_import_is_installed_by_the_readme(self):
        every = packages.all_plugins()
        assert len(every) > 40
        missing = {
            package.label: absent
            for package in every
            if (absent := _missing_imports(package, (package.folder / "README.md").read_text()))
        }
        assert missing == {}

    @pytest.mark.parametrize(
        ("imported", "installed", "missing"),
        [
            ("agl_user", "", set()),
            ("agl_core.types as types", "", set()),
            ("agl_base", "", {"agl_base"}),
            ("json", "", set()),
            ("httpx", "", {"httpx"}),
            ("httpx", "pip install 'httpx>=0.27'    # for the call", set()),
            ("agl_other", "pip install ./plugins/agl_base", {"agl_other"}),
            ("agl_other", "pip install './plugins/agl_other[x]'", set()),
        ],
    )
    def test_what_is_missing(
        self, tree: Path, imported: str, installed: str, missing: set[str]
    ) -> None:
        (user,) = packages.named(["agl_user"])
        text = f"```sh\n{installed}\n```\n\n```python norun\nimport {imported}\n```\n"
        assert _missing_imports(user, f"{packages.install_line(user)}\n{text}") == missing


def _missing_imports(package: Package, readme: str) -> set[str]:
    """Return the modules that programs of a README import and that its install lines lack."""
    programs = [m[3] for m in FENCE.finditer(readme) if m[1] == "python"]
    lines = re.findall(r"^(?:\$ )?pip install (.+)$", readme, re.MULTILINE)
    there = {module for line in lines for module in _modules_of(line)}
    imported = {module for program in programs for module in _imported(program)}
    return imported - there - sys.stdlib_module_names


def _imported(program: str) -> Iterator[str]:
    for line in program.splitlines():  # not the whole: some programs have gaps
        if re.match(r"\s*(from \w[\w.]* import|import \w)", line):
            (node,) = ast.parse(line.strip().rstrip("(") + "x" * line.endswith("(")).body
            if isinstance(node, ast.ImportFrom):
                yield str(node.module).partition(".")[0]
            elif isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)


def _modules_of(line: str) -> Iterator[str]:
    """Yield the modules of what an install line names, and of what that requires."""
    words = shlex.split(line, comments=True)
    labels = [match[1] for word in words if (match := re.match(r"\./plugins/(\w+)", word))]
    if "requirements.txt" in words:
        labels.append(packages.FOR_USERS)
    for own in (packages.core(), *packages.with_requirements(labels)):
        yield own.module
        yield from map(_module_of, own.dependencies)
    yield from map(_module_of, words)


def _module_of(requirement: str) -> str:
    """Return the module of a library, which has the name of its distribution in these READMEs."""
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("-", "_")
