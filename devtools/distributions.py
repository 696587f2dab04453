"""Builds, checks and installs the wheels and sdists of every package."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devtools import dashboard
from devtools.environments import (
    ENVS,
    create,
    install,
    program_of,
    python_of,
    tools,
    uv,
)
from devtools.packages import Package, all_plugins, core, everything
from devtools.process import ROOT, once, output_of, run, say

DIST = ROOT / "dist"
DOCTOR = "agl-doctor"
DASHBOARD = "agl_dashboard"
TOGETHER = ENVS / "all"
"""The environment of all packages: light ones with their libraries, heavy ones without."""
MISSING_LIBRARY = re.compile(r"No module named '(?!agl_)")
"""What Python says where a library is missing that is not a package of this repository."""
CONSTRAINTS = "constraints.txt"
"""File beside the wheels that lets pip and uv take these for the names of our packages: an index
may have a package of such a name, by anyone."""
TEST_TOOLS = (
    *("hypothesis>=6.112", "pytest<9.2", "pytest-asyncio", "pytest-rerunfailures>=16.0"),
    *("pytest-timeout", "pytest-xdist"),
)


@once
def build() -> Path:
    """Build the wheel and the sdist of every package once; return their folder.

    The wheel is built from the sdist, so that a file missing in the sdist is noticed.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    tools()
    dashboard.build()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_build_one, everything()))
    wheels = {wheel.name.partition("-")[0]: wheel for wheel in DIST.glob("*.whl")}
    lines = [f"{p.name} @ {wheels[p.name.replace('-', '_')].as_uri()}" for p in everything()]
    (DIST / CONSTRAINTS).write_text("\n".join(lines) + "\n")
    say(f"built {len(everything())} wheels and sdists in {DIST.relative_to(ROOT)}")
    return DIST


def _build_one(package: Package) -> None:
    # The environment of the tools has the build backend, so a build downloads nothing.
    uv(
        *("build", "--quiet", "--no-build-isolation", "--python", tools()),
        *("--out-dir", DIST, package.folder),
    )


def check() -> None:
    """Check every wheel and every sdist; exit with a list of all problems."""
    run(tools(), "-P", ROOT / "devtools/check_archives.py", build(), ROOT)


def check_some(chosen: Iterable[Package]) -> None:
    """Build and check the archives of some packages, and leave those of others in their folder."""
    DIST.mkdir(exist_ok=True)
    for package in chosen:
        if package.label == DASHBOARD:
            dashboard.build()
        _build_one(package)
        run(tools(), "-P", ROOT / "devtools/check_archives.py", DIST, ROOT, package.label)


def from_here(packages: Iterable[Package]) -> list[str | Path]:
    """Return the arguments that make uv install packages from the built wheels alone.

    Without them, uv installs a cached wheel of the same name and version instead of a new one.
    """
    names = [package.name for package in packages]
    anew = [f"--{what}-package={name}" for what in ("refresh", "reinstall") for name in names]
    return ["--constraint", build() / CONSTRAINTS, *anew]


def install_together() -> None:
    """Install every package into one fresh environment and check that every plugin is listed.

    The libraries of heavy packages conflict with each other, so heavy packages are installed
    without their libraries. `agl plugins list` reads only metadata and must still list them.
    """
    path = TOGETHER
    shutil.rmtree(path, ignore_errors=True)
    create(path)
    light = [package for package in everything() if not package.heavy]
    install(path, *from_here(everything()), *(package.name for package in light))
    heavy = [package.name for package in everything() if package.heavy]
    if heavy:
        install(path, *from_here(everything()), "--no-deps", *heavy)
    listed = list_plugins(path)
    missing = [
        point for package in everything() for point in package.plugins if point not in listed
    ]
    if missing:
        sys.exit(f"`agl plugins list` does not show {', '.join(missing)}:\n{listed}")
    say(f"installed {len(everything())} packages together")


def list_plugins(path: Path) -> set[str]:
    """Return the plugins that an environment lists, in the form ``store.sqlite``."""
    lines = output_of(program_of(path, "agl"), "plugins", "list", cwd=path).splitlines()
    return {".".join(line.split()[:2]) for line in lines[1:]}


def try_all() -> None:
    """Try the plugins of every package where all are installed together.

    The libraries of heavy packages are missing there: their plugins are shown with their
    configuration, which needs none of them, and are not built.
    """
    if not python_of(TOGETHER).exists():
        install_together()
    _try_each("together", all_plugins(), _shown_or_tried)


def _shown_or_tried(package: Package) -> None:
    if not package.plugins:
        import_module(TOGETHER, package)
    elif not package.heavy:
        try_plugins(TOGETHER, package)
    else:
        try:
            show_plugins(TOGETHER, package)
        except SystemExit as problem:
            # Some configurations import the library that they are for.
            if not MISSING_LIBRARY.search(str(problem)):
                raise


def _try_each(how: str, packages: Iterable[Package], try_one: Callable[[Package], None]) -> None:
    """Try packages on all cores, and exit if one does not work."""

    def problem_of(package: Package) -> tuple[Package, str]:
        try:
            try_one(package)
        except SystemExit as problem:
            return package, str(problem)
        return package, ""

    failed: list[str] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for package, problem in pool.map(problem_of, packages):
            say(f"{package.label} {how}: {problem or 'ok'}")
            if problem:
                failed.append(package.label)
    if failed:
        sys.exit(f"{how}, these do not work: {', '.join(failed)}")


# -- each alone ------------------------------------------------------------------------------------


def smoke_alone(packages: Iterable[Package]) -> None:
    """Install each package alone; check that its plugins load, build and print their help."""
    build()
    _try_each("alone", packages, smoke)


def smoke(package: Package) -> None:
    """Install a package in a fresh environment, without its extras, and check its plugins.

    The doctor, which checks them, is installed beside it. It checks the plugins of the package, or
    all that is installed with a package that has none: each other plugin is checked in its turn.

    Raises:
        SystemExit: A plugin does not import, is not listed, does not build or has no help.
    """
    path = ENVS / "alone" / package.label
    shutil.rmtree(path, ignore_errors=True)
    create(path)
    install(path, *from_here(everything()), package.name, DOCTOR)
    missing = set(package.plugins) - list_plugins(path)
    if missing:
        sys.exit(f"`agl plugins list` does not show {', '.join(sorted(missing))}")
    try_plugins(path, package)
    shutil.rmtree(path)


def try_plugins(path: Path, package: Package) -> None:
    """Import a package that an environment has, and load, build and show each of its plugins.

    Raises:
        SystemExit: Something does not work.
    """
    import_module(path, package)
    # This loads each plugin in a separate process and builds the components without options.
    own = ("--dist", package.name) if package.plugins else ()
    output_of(program_of(path, "agl"), "plugins", "doctor", "--strict", *own, cwd=path)
    show_plugins(path, package)


def import_module(path: Path, package: Package) -> None:
    output_of(python_of(path), "-P", "-c", f"import {package.module}", cwd=path)


def show_plugins(path: Path, package: Package) -> None:
    """Print the configuration of each plugin of a package, or the help of a command."""
    for point in package.plugins:
        kind, _, name = point.partition(".")
        shown = (name, "--help") if kind == "command" else ("plugins", "show", point)
        output_of(program_of(path, "agl"), *shown, cwd=path)


def alone(package: Package, *, fresh: bool = True) -> Path:
    """Install one package with its test extra in a separate environment; return its Python.

    Args:
        package: The package.
        fresh: Recreate the environment; if False, an existing one keeps its libraries.
    """
    path = ENVS / package.label
    if fresh or not python_of(path).exists():
        shutil.rmtree(path, ignore_errors=True)
        create(path)
    install(path, *from_here(everything()), package.requirement(), *TEST_TOOLS)
    return python_of(path)


@once
def light_together() -> Path:
    """Install every light package with its test extra in one environment; return its Python.

    The core has its `dev` extra, which is what the default suite needs.
    """
    path = ENVS / "light"
    shutil.rmtree(path, ignore_errors=True)
    create(path)
    wanted = [package.requirement() for package in all_plugins() if not package.heavy]
    wanted.append(f"{core().name}[dev]")
    install(path, *from_here(everything()), *wanted, *TEST_TOOLS, compiled=True)
    return python_of(path)
