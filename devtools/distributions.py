"""Wheels and sdists of every package: building them, checking them, installing all of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from devtools.environments import (
    ENVS,
    create,
    install,
    program_of,
    python_of,
    tools,
    uv,
)
from devtools.packages import Package, all_plugins, everything
from devtools.process import ROOT, output_of, run

DIST = ROOT / "dist"
TEST_TOOLS = ("hypothesis>=6.112", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")


@cache
def build() -> Path:
    """Build the wheel and the sdist of every package once; return the folder that has them.

    The wheel is built out of the sdist, so an sdist that lacks a file shows.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    tools()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_build_one, everything()))
    print(f"built {len(everything())} wheels and sdists in {DIST.relative_to(ROOT)}", flush=True)
    return DIST


def _build_one(package: Package) -> None:
    # The build backend is in the environment of the tools; nothing is downloaded for a build.
    uv(
        *("build", "--quiet", "--no-build-isolation", "--no-sources", "--python", tools()),
        *("--out-dir", DIST, package.folder),
    )


def check() -> None:
    """Check every wheel and every sdist; exit with all that is wrong."""
    run(tools(), "-P", ROOT / "devtools/check_archives.py", build(), ROOT)


def from_here(packages: Iterable[Package]) -> list[str | Path]:
    """Return the arguments that make uv take packages out of the folder of what was built.

    uv takes a wheel of a name and version that it knows for the one it knows, however new it is.
    """
    names = [package.name for package in packages]
    anew = [f"--{what}-package={name}" for what in ("refresh", "reinstall") for name in names]
    return ["--find-links", build(), *anew]


def install_together() -> None:
    """Install every package into one fresh environment and see that every plugin is listed.

    The libraries of heavy packages contradict each other, so heavy packages are installed without
    their libraries; `agl plugins list` reads metadata alone and must list them all the same.
    """
    path = ENVS / "all"
    shutil.rmtree(path, ignore_errors=True)
    create(path)
    light = [package for package in everything() if not package.heavy]
    install(path, *from_here(everything()), *(package.name for package in light))
    heavy = [package.name for package in everything() if package.heavy]
    if heavy:
        install(path, *from_here(everything()), "--no-deps", *heavy)
    listed = list_plugins(path)
    missing = [
        point for package in everything() for point in package.entry_points if point not in listed
    ]
    if missing:
        sys.exit(f"`agl plugins list` does not show {', '.join(missing)}:\n{listed}")
    print(f"installed {len(everything())} packages together", flush=True)


def list_plugins(path: Path) -> set[str]:
    """Return the plugins that an environment lists, as ``store.sqlite``."""
    lines = output_of(program_of(path, "agl"), "plugins", "list", cwd=path).splitlines()
    return {".".join(line.split()[:2]) for line in lines[1:]}


# -- each alone ------------------------------------------------------------------------------------


def smoke_alone(packages: Iterable[Package]) -> None:
    """Install each package alone, and see that what it brings loads, builds and prints its help."""
    build()
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for package, problem in pool.map(_smoke_or_problem, packages):
            print(f"{package.module} alone: {problem or 'ok'}", flush=True)
            if problem:
                failed.append(package.module)
    if failed:
        sys.exit(f"alone, these do not work: {', '.join(failed)}")


def _smoke_or_problem(package: Package) -> tuple[Package, str]:
    try:
        smoke(package)
    except SystemExit as problem:
        return package, str(problem)
    return package, ""


def smoke(package: Package) -> None:
    """Install a package in a fresh environment, without its extras, and try what it brings.

    Raises:
        SystemExit: It does not import, is not listed, does not build or has no help.
    """
    path = ENVS / "alone" / package.module
    shutil.rmtree(path, ignore_errors=True)
    create(path)
    install(path, *from_here(everything()), package.name)
    python = python_of(path)
    output_of(python, "-P", "-c", f"import {package.module}", cwd=path)
    missing = set(package.entry_points) - list_plugins(path)
    if missing:
        sys.exit(f"`agl plugins list` does not show {', '.join(sorted(missing))}")
    # Loads each plugin in a process of its own and builds the components that need no options.
    output_of(program_of(path, "agl"), "plugins", "doctor", "--strict", cwd=path)
    for point in package.entry_points:
        kind, _, name = point.partition(".")
        if kind == "command":
            output_of(program_of(path, "agl"), name, "--help", cwd=path)
        else:
            output_of(program_of(path, "agl"), "plugins", "show", point, cwd=path)
    shutil.rmtree(path)


def alone(package: Package, *, fresh: bool = True) -> Path:
    """Install one package with its test extra in an environment of its own; return its Python.

    Args:
        package: The package.
        fresh: Recreate the environment. False: an existing one keeps its libraries.
    """
    path = ENVS / package.module
    if fresh or not python_of(path).exists():
        shutil.rmtree(path, ignore_errors=True)
        create(path)
    install(path, *from_here(everything()), package.requirement(), *TEST_TOOLS)
    return python_of(path)


def light_together() -> Path:
    """Install every light package with its test extra in one environment; return its Python."""
    path = ENVS / "light"
    shutil.rmtree(path, ignore_errors=True)
    create(path)
    wanted = [package.requirement() for package in all_plugins() if not package.heavy]
    install(path, *from_here(everything()), *wanted, *TEST_TOOLS)
    return python_of(path)
