"""A new package of every kind passes its tests in a fresh environment.

The environment has wheels of the core, of what agl-testing requires, and of the package. Other
packages (pydantic, pytest, …) come from the environment that runs this test, through a path file:
installing them for each kind would take minutes and test nothing more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from agl_core.plugins import KINDS
from agl_scaffold import PluginName, create_plugin
from devtools.packages import with_requirements

ROOT = Path(__file__).resolve().parents[3]
SECONDS_TO_GREEN = 60.0
PACKAGES = with_requirements(["agl_proxy_direct", "agl_testing"])
"""agl-testing, what it requires of this repository, and what a new package may require."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COV_CORE_SOURCE")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Environment:
    """A virtual environment with the wheels of the core and of the kit in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        venv.create(path, with_pip=False, symlinks=os.name != "nt")
        folder = "Scripts" if os.name == "nt" else "bin"
        self.python = path / folder / ("python.exe" if os.name == "nt" else "python")
        self.pip("hatchling>=1.25")
        self.install(ROOT, *(package.folder for package in PACKAGES))
        # A path file only adds this folder to sys.path; path files inside it, which editable
        # installs use, are not read.
        borrowed = sysconfig.get_path("purelib")
        self.site.joinpath("borrowed.pth").write_text(borrowed + "\n")

    @property
    def site(self) -> Path:
        return next(self.path.glob("[Ll]ib/**/site-packages"))

    def pip(self, *arguments: str | Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet"]
        run(*pip, *arguments, cwd=self.path)

    def install(self, *projects: Path) -> None:
        self.pip("--no-deps", "--no-build-isolation", *projects)


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("fresh") / "env")


@pytest.mark.parametrize(
    "kind",
    # The largest suites come near the limit if other tests run at the same time.
    [pytest.param(k, marks=pytest.mark.timing) if k in ("store", "proxy") else k for k in KINDS],
)
def test_a_new_package_passes_its_tests(kind: str, fresh: Environment, tmp_path: Path):
    start = time.monotonic()
    name = PluginName(kind, f"made-{kind.replace('_', '-')}")
    folder = create_plugin(name, tmp_path)
    fresh.install(folder)
    output = run(fresh.python, "-m", "pytest", "-q", "-o", "pythonpath=", cwd=folder)
    seconds = time.monotonic() - start
    print(f"{kind}: from nothing to green in {seconds:.1f} s")
    assert " passed" in output
    assert "failed" not in output
    assert seconds < SECONDS_TO_GREEN
    # The tests used the installed package, and the registry finds it.
    code = f"import agl_core, {name.package} as it; print(agl_core.__file__, it.__file__)"
    for file in run(fresh.python, "-c", code, cwd=tmp_path).split():
        assert Path(file).is_relative_to(fresh.path)
    listed = run(fresh.python, "-m", "agl_cli_kit", "plugins", "list", cwd=tmp_path)
    assert any(line.split()[:3] == [kind, name.name, "ok"] for line in listed.splitlines()), listed


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_is_typed(kind: str, tmp_path: Path):
    folder = create_plugin(PluginName(kind, f"made-{kind.replace('_', '-')}"), tmp_path)
    output = run(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, cwd=folder)
    assert "0 errors" in output
