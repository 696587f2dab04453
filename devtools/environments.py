"""Creates virtual environments with uv, which is installed into the first of them.

Environments are in ``.venv`` and ``.envs``. Each stores a stamp of its inputs and is updated when
they change.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from devtools.packages import Package
from devtools.process import ROOT, once, run, say

ENVS = ROOT / ".envs"
BIN = "Scripts" if os.name == "nt" else "bin"
PYTHON = "python.exe" if os.name == "nt" else "python"
TOOLS = ("hatchling>=1.25", "packaging>=24.2", "uv>=0.5")
PIP_TO_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}
"""Environment variables of uv by pip setting: uv does not read pip's settings, and a machine with a
package mirror often has only those."""


def python_of(environment: Path) -> Path:
    return environment / BIN / PYTHON


def program_of(environment: Path, name: str) -> Path:
    return environment / BIN / (f"{name}.exe" if os.name == "nt" else name)


def stale(path: Path, made_from: Sequence[str]) -> str | None:
    """Return the new stamp of an environment, or None if its stamp matches these texts."""
    stamp = hashlib.sha256("\0".join([sys.version, *made_from]).encode()).hexdigest()
    file = path / "made-from"
    if file.exists() and file.read_text() == stamp and python_of(path).exists():
        return None
    say(f"making {path.relative_to(ROOT)} ...")
    return stamp


@once
def tools() -> Path:
    """Return a Python with uv and the build backend; needs only the running Python."""
    path = ENVS / "tools"
    stamp = stale(path, TOOLS)
    if stamp:
        shutil.rmtree(path, ignore_errors=True)
        _create_with_pip(path)
        run(python_of(path), "-m", "pip", "install", "--quiet", *TOOLS)
        (path / "made-from").write_text(stamp)
    return python_of(path)


def _create_with_pip(path: Path) -> None:
    """Create an environment with pip, even if Python comes without ensurepip."""
    try:
        import ensurepip  # noqa: F401 -- Debian and Ubuntu ship it in a package of its own
    except ImportError:
        venv.create(path, with_pip=False, clear=True, symlinks=os.name != "nt")
        with TemporaryDirectory() as folder:
            run(python_of(path), _debian_pip(Path(folder)) / "pip", "install", "--quiet", "pip")
    else:
        venv.create(path, with_pip=True, clear=True, symlinks=os.name != "nt")


def _debian_pip(folder: Path) -> Path:
    """Return a runnable pip wheel from Debian's archive, without installing a package."""
    try:
        subprocess.run(
            ["apt-get", "download", "--quiet", "python3-pip-whl"], cwd=folder, check=True
        )
        package = next(folder.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        return next(folder.glob("usr/share/python-wheels/pip-*.whl"))
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        sys.exit(f"Python has no ensurepip here: sudo apt-get install python3-venv ({error})")


def uv(*arguments: str | Path) -> None:
    """Run uv with pip's indexes, unless uv has indexes configured."""
    env = {
        theirs: ",".join(os.environ[ours].split())
        for ours, theirs in PIP_TO_UV.items()
        if ours in os.environ and theirs not in os.environ
    }
    run(tools(), "-m", "uv", *arguments, env=env)


def create(path: Path) -> Path:
    """Create an empty environment with pip, which a few tests call; return its Python."""
    uv("venv", "--quiet", "--seed", "--clear", "--python", sys.executable, path)
    return python_of(path)


def install(path: Path, *arguments: str | Path, compiled: bool = False) -> None:
    """Install requirements into an environment.

    Args:
        path: Folder of the environment.
        arguments: Requirements, and options of ``uv pip install``.
        compiled: Compile to bytecode at once, for processes that start at the same time. Otherwise
            the first process compiles what it imports: far less than torch or an agent framework
            brings, whose whole compilation takes a minute.
    """
    options = ["--compile-bytecode"] if compiled else []
    python = python_of(path)
    uv("pip", "install", "--quiet", "--python", python, *options, *arguments)


def environment(
    path: Path,
    requirements: Sequence[str | Path],
    made_from: Iterable[Path] = (),
    *,
    compiled: bool = False,
) -> Path:
    """Return the Python of an environment that has ``requirements``, installing missing ones.

    Args:
        path: Folder of the environment.
        requirements: Arguments to ``uv pip install``.
        made_from: Files whose change makes the environment stale.
        compiled: See :func:`install`.
    """
    stamp = stale(path, [*map(str, requirements), *(file.read_text() for file in made_from)])
    if stamp:
        if not python_of(path).exists() or not _is_of_this_python(path):
            create(path)
        install(path, *requirements, compiled=compiled)
        (path / "made-from").write_text(stamp)
    return python_of(path)


def _is_of_this_python(path: Path) -> bool:
    """Whether an environment was made by a Python of this version, which uv writes into it."""
    version = re.search(
        r"^version(?:_info)? = (\d+\.\d+)", (path / "pyvenv.cfg").read_text(), re.MULTILINE
    )
    return version is not None and version[1] == "{}.{}".format(*sys.version_info)


def editable(
    path: Path, extra: str, chosen: Sequence[Package], *more: str | Path, tested: bool = False
) -> Path:
    """Return an environment with editable installs of the core and of packages.

    Args:
        path: Folder of the environment.
        extra: Extra of the core.
        chosen: The packages.
        more: Further arguments to ``uv pip install``.
        tested: Whether to install the ``test`` extras of the packages.
    """
    requirements: list[str | Path] = ["-e", f".[{extra}]"]
    for package in chosen:
        suffix = "[test]" if tested and package.has_test_extra else ""
        requirements += ["-e", f"{package.folder}{suffix}"]
    requirements += more
    projects = [folder / "pyproject.toml" for folder in (ROOT, *(p.folder for p in chosen))]
    return environment(path, requirements, projects, compiled=True)
