"""Tests that a wheel or sdist with a fault is rejected, and one without is accepted."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from devtools.check_archives import main, sdist_problems, wheel_problems
from devtools.distributions import CONSTRAINTS

PROJECT = {"name": "agl-thing", "version": "1.2.0"}
INFO = "agl_thing-1.2.0.dist-info"
METADATA = """\
Metadata-Version: 2.4
Name: agl-thing
Version: 1.2.0
Summary: A thing.
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.11
Description-Content-Type: text/markdown

# A thing
"""
WHEEL = {
    "agl_thing/__init__.py": "",
    "agl_thing/parts/one.py": "",
    "agl_thing/py.typed": "",
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/WHEEL": "",
    f"{INFO}/RECORD": "",
    f"{INFO}/licenses/LICENSE": "MIT",
}
SDIST = {
    "src/agl_thing/__init__.py": "",
    "src/agl_thing/parts/one.py": "",
    "src/agl_thing/py.typed": "",
    "PKG-INFO": METADATA,
    "README.md": "# A thing",
    "LICENSE": "MIT",
    "pyproject.toml": "",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Create the module in the working tree."""
    folder = tmp_path / "src/agl_thing"
    (folder / "parts").mkdir(parents=True)
    for name in ("__init__.py", "parts/one.py", "py.typed"):
        (folder / name).touch()
    return folder


def check_wheel(
    files: dict[str, str], source: Path, project: dict[str, str] = PROJECT
) -> list[str]:
    path = source.parent / "agl_thing-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return list(wheel_problems(path, source, project))


def check_sdist(
    files: dict[str, str], source: Path, project: dict[str, str] = PROJECT, *, top: str = ""
) -> list[str]:
    path = source.parent / "archive.tar.gz"
    top = top or f"{project['name'].replace('-', '_')}-1.2.0"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return list(sdist_problems(path, source, project))


def test_a_good_wheel_has_no_problems(source: Path):
    assert check_wheel(WHEEL, source) == []


def test_archives_are_named_after_the_distribution_and_not_after_its_module(source: Path):
    project = {"name": "agl", "version": "1.2.0"}
    wheel = {name.replace(INFO, "agl-1.2.0.dist-info"): text for name, text in WHEEL.items()}
    assert check_wheel(wheel, source, project) == []
    assert f"{INFO}/METADATA lies outside of agl_thing/" in check_wheel(WHEEL, source, project)
    assert check_sdist(SDIST, source, project) == []
    assert check_sdist(SDIST, source, project, top="agl_thing-1.2.0") != []


def test_a_wheel_that_is_too_large_is_named(source: Path):
    (problem,) = check_wheel({**WHEEL, "agl_thing/data.bin": "x" * 3_000_000}, source)
    assert problem.endswith("bytes are more than 3000000")


@pytest.mark.parametrize("name", [name for name in WHEEL if not name.endswith(("WHEEL", "RECORD"))])
def test_a_file_that_a_wheel_lacks_is_named(source: Path, name: str):
    files = {other: text for other, text in WHEEL.items() if other != name}
    problems = check_wheel(files, source)
    assert any(f"{Path(name).name} is missing" in problem for problem in problems)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("agl_thing/tests/test_one.py", "is a test"),
        ("agl_thing/conftest.py", "is a test"),
        ("agl_thing/__pycache__/one.cpython-311.pyc", "is a left-over"),
        ("agl_thing/agl.db", "is a left-over"),
        ("tests/test_one.py", "lies outside of agl_thing/"),
        (f"{INFO}/notes.txt", "does not belong into a wheel"),
    ],
)
def test_a_stray_file_in_a_wheel_is_named(source: Path, name: str, problem: str):
    assert f"{name} {problem}" in check_wheel({**WHEEL, name: ""}, source)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Version: 1.2.0", "Version: 1.3.0", "version 1.3.0, pyproject.toml has 1.2.0"),
        ("License-Expression: MIT\n", "", "no licence expression"),
        ("Summary: A thing.\n", "", "no summary"),
        ("# A thing\n", "", "no description"),
        ("text/markdown", "text/plain", "the description is text/plain, not Markdown"),
        ("Requires-Python: >=3.11\n", "", "no requires-python"),
        ("Requires-Python: >=3.11", "Requires-Python: three", "requires-python"),
        ("License-Expression: MIT", "License-Expression: Some", "license-expression"),
    ],
)
def test_bad_metadata_is_named(source: Path, old: str, new: str, problem: str):
    files = {**WHEEL, f"{INFO}/METADATA": METADATA.replace(old, new)}
    problems = check_wheel(files, source)
    assert any(found.startswith("metadata: ") and problem in found for found in problems), problems


def test_a_good_sdist_has_no_problems(source: Path):
    assert check_sdist(SDIST, source) == []


@pytest.mark.parametrize("name", list(SDIST))
def test_a_file_that_an_sdist_lacks_is_named(source: Path, name: str):
    files = {other: text for other, text in SDIST.items() if other != name}
    assert f"{name.removeprefix('src/')} is missing" in check_sdist(files, source)


@pytest.mark.parametrize("name", ["compose.yaml", "tests/test_one.py", ".env"])
def test_a_stray_file_in_an_sdist_is_named(source: Path, name: str):
    assert f"{name} does not belong into an sdist" in check_sdist({**SDIST, name: ""}, source)


def test_only_a_file_that_no_build_leaves_is_named(tmp_path: Path, capsys):
    dist = tmp_path / "dist"
    dist.mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "agl-thing"\nversion = "1.2.0"\n')
    for name in (CONSTRAINTS, ".gitignore", "other-1.0.0.tar.gz"):
        (dist / name).touch()
    assert main(dist, tmp_path) == 1
    named = [line for line in capsys.readouterr().out.splitlines() if "no package" in line]
    assert named == ["other-1.0.0.tar.gz: belongs to no package"]
