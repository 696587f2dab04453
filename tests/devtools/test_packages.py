"""Tests of the package tools: versions and requirements."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools import packages


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
