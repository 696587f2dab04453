"""A package that `agl plugins new` writes into this repository is a part of it at once.

The commands of ``dev.py`` run in a copy of the working tree, to which nothing but the package is
added. They make the copy's own development environment, from the cache of uv or from the index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.environments import BIN
from devtools.process import ROOT
from devtools.walk_docs import copy_of_working_tree

KIND, NAME = "adapter", "made-here"  # it has options and public names
DIST, MODULE = "agl-adapter-made-here", "agl_adapter_made_here"
SOURCE = f"plugins/{MODULE}/src/{MODULE}/adapter.py"
FOLDERS = (f"plugins/{MODULE}", f"tests/plugins/{MODULE}")
OF_ALL_PACKAGES = (
    *("tests/docs/test_public_names.py", "tests/docs/test_settings_page.py"),
    *("tests/plugins/agl/test_catalogue_of_agl.py", "tests/devtools/test_private_parts.py"),
    f"tests/docs/test_docs_run.py::test_page[plugins/{MODULE}/README.md]",
)
"""Tests that look at every package."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("new_package"),
]


class Copy:
    """A copy of the working tree with a new package.

    Args:
        root: Where it is made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        copy_of_working_tree(root)
        # Environments that do not depend on the packages are shared.
        (root / ".envs").mkdir()
        for name in ("tools", "site"):
            if (ROOT / ".envs" / name).exists():
                (root / ".envs" / name).symlink_to(ROOT / ".envs" / name)
        command = ("-m", "agl_cli_kit", "plugins", "new", KIND, NAME, "--path", root / "plugins")
        self.said = self.run(sys.executable, *command)

    def dev(self, *arguments: str, fails: bool = False) -> str:
        return self.run(sys.executable, "dev.py", *arguments, fails=fails)

    def run(self, *command: str | Path, fails: bool = False) -> str:
        """Run a command in the copy and return its output."""
        hidden = ("PYTHON", "COV", "AGL_", "RECORD", "VIRTUAL_ENV")
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.root,
            env={name: it for name, it in os.environ.items() if not name.startswith(hidden)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert bool(done.returncode) == fails, done.stdout
        return done.stdout

    @contextmanager
    def with_line(self, line: str) -> Iterator[None]:
        """Append a line to a module of the package, for a while."""
        file = self.root / SOURCE
        text = file.read_text()
        file.write_text(f"{text}\n\n{line}\n")
        yield
        file.write_text(text)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("new-package") / "agl")


def changed(copy: Copy) -> set[str]:
    return {line[3:] for line in copy.run("git", "status", "--porcelain").splitlines()}


def test_no_other_file_changes(copy: Copy):
    assert changed(copy) == {f"{folder}/" for folder in FOLDERS}
    assert f"python3 dev.py test tests/plugins/{MODULE}" in copy.said


def test_it_is_linted(copy: Copy):
    said = copy.dev("lint")
    assert f"not listed yet: {DIST};" in said
    with copy.with_line("import os"):
        assert SOURCE in copy.dev("lint", fails=True)


def test_it_is_typed(copy: Copy):
    assert "0 errors" in copy.dev("types", *FOLDERS)
    with copy.with_line("WRONG: int = 'text'"):
        assert SOURCE in copy.dev("types", *FOLDERS, fails=True)


def test_its_tests_are_in_the_default_suite(copy: Copy):
    assert " passed" in copy.dev("test", FOLDERS[1], "-n0")
    with copy.with_line("raise RuntimeError('broken')"):
        copy.dev("test", FOLDERS[1], "-n0", fails=True)
    # Of the suite only what begins like it: to collect all takes longer than all else here.
    alike = ("tests/plugins", "--ignore-glob=tests/plugins/agl_[!a]*")
    pytest = (copy.root / ".venv" / BIN / "python", "-m", "pytest")
    found = copy.run(*pytest, "--collect-only", "--quiet", *alike)
    assert f"{FOLDERS[1]}/test_conformance.py::" in found
    assert "tests/plugins/agl_adapters/" in found
    assert "tests/plugins/agl_algo_apo/" not in found, "its manifest says default = false"
    assert "tests/plugins/agl_algo_grpo/" not in found, "its manifest says heavy = true"


def test_tests_of_all_packages_accept_it(copy: Copy):
    assert " passed" in copy.dev("test", "-n0", *OF_ALL_PACKAGES)


def test_it_is_built(copy: Copy):
    assert "checked 2 wheels and sdists" in copy.dev("dist", MODULE)
    assert len(list((copy.root / "dist").glob(f"{MODULE}-*"))) == 2
    script = "from devtools import packages; print([p.label for p in packages.everything()])"
    assert MODULE in copy.run(sys.executable, "-c", script)  # what `dist` builds


def test_it_is_documented(copy: Copy):
    copy.dev("site")
    html = copy.root / "build/site/html"
    assert DIST in (html / "docs/packages/index.html").read_text()
    assert DIST in (html / f"plugins/{MODULE}/index.html").read_text()
    assert (html / f"docs/reference/{MODULE}/index.html").is_file()


def test_it_is_listed(copy: Copy):
    listed = copy.run(copy.root / ".venv" / BIN / "agl", "plugins", "list")
    assert [KIND, NAME, "ok"] in [line.split()[:3] for line in listed.splitlines()]
    assert changed(copy) == {f"{folder}/" for folder in FOLDERS}
    copy.dev("packages")
    for file in ("README.md", "CONTRIBUTING.md"):
        assert MODULE in (copy.root / file).read_text()
    assert "not listed yet" not in copy.dev("lint")
