"""Installs a program's pinned version into a folder of its own, from npm or PyPI."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from programs import Program

__all__ = ["NODE", "InstallError", "Installed", "MissingInterpreterError", "install"]

NODE = "22.23.3"
"""Node.js from npm, for programs that need a newer one than there is."""
_NEWEST_PYTHON = 14
"""Minor version of the newest Python 3 that is looked for."""
_SECONDS = 900


class InstallError(Exception):
    """A program cannot be installed; the message says why, in one line."""


class MissingInterpreterError(InstallError):
    """Node.js or a new enough Python is missing."""


class Installed:
    """An installed program.

    Attributes:
        binary: Its command.
        path: Folders that its search path needs besides: that of its Node.js.
    """

    def __init__(self, folder: Path, program: Program) -> None:
        scripts = "node_modules/.bin" if program.registry == "npm" else "bin"
        self.binary = folder / scripts / program.binary
        self.path = [self.binary.parent] if program.registry == "npm" else []

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables of a run: of this process only the search path and the language."""
        search = os.pathsep.join([*map(str, self.path), os.environ.get("PATH", os.defpath)])
        plain = {"TERM": "dumb", "NO_COLOR": "1", "LANG": os.environ.get("LANG", "C.UTF-8")}
        return {**plain, "PATH": search, "HOME": str(home)}


def install(program: Program, root: Path) -> Installed:
    """Return a program, installed below ``root`` if it is not there yet.

    Raises:
        MissingInterpreterError: Node.js or a new enough Python is missing.
        InstallError: The registry does not answer, or does not have the version.
    """
    folder = root / program.folder
    complete = folder / "complete"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{program.folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # rollouts of other threads and processes wait
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if program.registry == "npm":
                _from_npm(program, folder)
            else:
                _from_pypi(program, folder)
            complete.touch()
    return Installed(folder, program)


def _from_npm(program: Program, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise MissingInterpreterError(f"{program.title} needs npm: install Node.js")
    wanted = [f"{program.package}@{program.version}"]
    if _node_version() < program.node:
        wanted.append(f"node@{NODE}")
    (folder / "package.json").write_text("{}")
    _run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error", *wanted], folder)


def _node_version() -> int:
    """Return the major version of the Node.js on the search path; 0 if there is none."""
    node = shutil.which("node")
    if node is None:
        return 0
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"v(\d+)", said.stdout)
    return int(found[1]) if found else 0


def _from_pypi(program: Program, folder: Path) -> None:
    """Install into an environment of its own, since programs pin what they require."""
    chosen = ["--python", _interpreter(program)]
    _run([sys.executable, "-m", "virtualenv", "--quiet", *chosen, "."], folder)
    wanted = [f"{package}=={program.version}" for package in (program.package, *program.others)]
    _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *wanted], folder)


def _interpreter(program: Program) -> str:
    """Return a Python that a program runs on: this one, one of the search path, or one of pyenv."""
    if sys.version_info >= (3, program.python):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for minor in range(program.python, _NEWEST_PYTHON + 1):
        name = f"python3.{minor}"
        for found in (shutil.which(name), *pyenv.glob(f"versions/3.{minor}.*/bin/{name}")):
            # A shim of pyenv is on the search path although it runs nothing.
            if found and not subprocess.run([found, "-V"], capture_output=True).returncode:
                return str(found)
    raise MissingInterpreterError(f"{program.title} needs Python 3.{program.python} or newer")


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{' '.join(command)}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise InstallError(f"{' '.join(command)}: {last}")
