"""Tests of the package tools: versions, and the packages that a change affects."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import packages

PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
dependencies = [{requirements}]
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a repository: a core, a base plugin, one that requires it in an extra, and another."""
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    for cached in (packages.core, packages.all_plugins):
        cached.cache_clear()
    (tmp_path / "agl_core").mkdir()
    (tmp_path / "agl_core/__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(name="agl-core", requirements=""))
    requires = '"agl-core>=0.1,<0.2"'
    for name in ("agl-base", "agl-user", "agl-other"):
        folder = tmp_path / "plugins" / name.replace("-", "_")
        folder.mkdir(parents=True)
        text = PYPROJECT.format(name=name, requirements=requires)
        if name == "agl-user":
            text += '\n[project.optional-dependencies]\ntest = ["agl-base[x]>=0.1,<0.2"]\n'
        if name == "agl-other":
            text += "\n[tool.agl-dev]\nheavy = true\n"
        (folder / "pyproject.toml").write_text(text)
    yield tmp_path
    for cached in (packages.core, packages.all_plugins):
        cached.cache_clear()


def git(tree: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *arguments], cwd=tree, check=True, capture_output=True)


@pytest.fixture
def repository(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("git") is None:
        pytest.fail("git is not installed")
    git(tree, "init", "--initial-branch", "main")
    git(tree, "add", ".")
    git(tree, "commit", "--message", "first")
    monkeypatch.setattr(
        packages,
        "output_of",
        lambda *command: (
            subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout
        ),
    )
    return tree


@pytest.mark.parametrize(
    ("file", "touched"),
    [
        ("docs/page.md", []),
        ("plugins/agl_other/src/agl_other/a.py", ["agl_other"]),
        ("tests/plugins/agl_user/test_a.py", ["agl_user"]),
        ("plugins/agl_base/README.md", ["agl_base", "agl_user"]),
        ("agl_core/ids.py", ["agl_base", "agl_other", "agl_user"]),
        ("pyproject.toml", ["agl_base", "agl_other", "agl_user"]),
    ],
)
@pytest.mark.parametrize("committed", [True, False])
def test_a_change_touches_a_package_and_those_that_require_it(
    repository: Path, file: str, touched: list[str], committed: bool
):
    path = repository / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as changed:
        changed.write("\n")
    if committed:
        git(repository, "checkout", "-b", "topic")
        git(repository, "add", ".")
        git(repository, "commit", "--message", "second")
    assert [package.module for package in packages.changed_since("main")] == touched


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


def test_heavy_packages_are_not_light(tree: Path):
    assert [package.module for package in packages.light_plugins()] == ["agl_base", "agl_user"]


def test_requirements_of_requirements_come_along():
    modules = [package.module for package in packages.with_requirements(["agl_bundle"])]
    assert {"agl_bundle", "agl_store_http", "agl_serving", "agl_exec_cs"} <= set(modules)
    assert "agl_testing" not in modules
