#!/usr/bin/env python3
"""Every development command, with nothing but Python: each creates the environment it needs.

    python3 dev.py demo              the main job: watch an agent get better
    python3 dev.py test [ARGS...]    the default test suite; ARGS go to pytest
    python3 dev.py slow              the slow suites
    python3 dev.py lint | types      ruff; pyright
    python3 dev.py cover             the default suite with its coverage gate
    python3 dev.py bench [NAME...]   the benchmarks
    python3 dev.py plugins [NAME...] each plugin's wheel, alone with the core's
    python3 dev.py heavy [NAME...]   the plugins' tests on real vLLM, torch and agent frameworks
    python3 dev.py lowest            the core with the oldest versions it allows
    python3 dev.py ci                all of it, as CI does

Environments live in .venv and .envs and are made anew when what they install changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent
ENVS = ROOT / ".envs"
BIN = "Scripts" if os.name == "nt" else "bin"
LIFECYCLE_FILE = "agl_core/lifecycle.py"
DEMO_PLUGINS = (
    "agl_serving",
    "agl_store_http",
    "agl_exec_cs",
    "agl_proxy_direct",
    "agl_store_sqlite",
    "agl_prompt_search",
    "agl_algo_apo",
)
DEV_PLUGINS = ("agl_testing", "agl_bundle", "agl_export", "agl_trace", "agl_judge", *DEMO_PLUGINS)
"""Plugins without heavy dependencies, which the default suite and the docs make use of."""
LINE_COVERAGE_PERCENT = 90


# -- environments ----------------------------------------------------------------------------------


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command from the repository's root; a failure ends this program with its exit code."""
    code = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env={**os.environ, **(env or {})}, check=False
    ).returncode
    if code:
        sys.exit(code)


def every(jobs: dict[str, Callable[[], None]]) -> None:
    """Do each job with the time it took; those that fail keep no other from its turn."""
    took: list[str] = []
    failed: list[str] = []
    for name, job in jobs.items():
        print(f"-- {name}", flush=True)
        start = time.monotonic()
        try:
            job()
        except SystemExit as end:
            failed.append(name)
            print(f"-- {name} failed: {end}", flush=True)
        took.append(f"{name} {time.monotonic() - start:.0f} s")
    print("-- " + ", ".join(took), flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def python_of(environment: Path) -> Path:
    return environment / BIN / ("python.exe" if os.name == "nt" else "python")


def environment(path: Path, requirements: Sequence[str], made_from: Sequence[Path]) -> Path:
    """Return the interpreter of an environment that has ``requirements``, making it if need be.

    Args:
        path: Folder of the environment.
        requirements: Arguments to ``pip install``.
        made_from: Files whose change makes the environment stale.
    """
    wanted = hashlib.sha256(
        "\0".join([sys.version, *requirements, *(file.read_text() for file in made_from)]).encode()
    ).hexdigest()
    stamp = path / "made-from"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {path.relative_to(ROOT)} ...", flush=True)
        if not python_of(path).exists():
            create(path)
        run(python_of(path), "-m", "pip", "install", "--quiet", *requirements)
        stamp.write_text(wanted)
    return python_of(path)


def create(path: Path) -> None:
    """Make a virtual environment with pip in it, also where Python comes without ensurepip."""
    try:
        import ensurepip  # noqa: F401 -- Debian and Ubuntu ship it in a package of its own
    except ImportError:
        venv.create(path, with_pip=False, clear=True, symlinks=os.name != "nt")
        with TemporaryDirectory() as folder:
            run(python_of(path), debian_pip(Path(folder)) / "pip", "install", "--quiet", "pip")
    else:
        venv.create(path, with_pip=True, clear=True, symlinks=os.name != "nt")


def debian_pip(folder: Path) -> Path:
    """Return a runnable pip wheel taken from Debian's archive, without installing anything."""
    try:
        subprocess.run(
            ["apt-get", "download", "--quiet", "python3-pip-whl"], cwd=folder, check=True
        )
        package = next(folder.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        return next(folder.glob("usr/share/python-wheels/pip-*.whl"))
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        sys.exit(f"Python has no ensurepip here: sudo apt-get install python3-venv ({error})")


def demo_python() -> Path:
    return editable(ROOT / ".venv", "demo", DEMO_PLUGINS)


def dev_python() -> Path:
    return editable(ROOT / ".venv", "dev", DEV_PLUGINS)


def editable(path: Path, extra: str, plugins: Sequence[str], *more: str) -> Path:
    """Return an environment with the core and plugins as they are in the working tree, and more."""
    folders = [ROOT / "plugins" / name for name in plugins]
    requirements = [part for folder in folders for part in ("-e", str(folder))]
    projects = [folder / "pyproject.toml" for folder in (ROOT, *folders)]
    return environment(path, ["-e", f".[{extra}]", *requirements, *more], projects)


# -- commands --------------------------------------------------------------------------------------


def demo(arguments: Sequence[str]) -> None:
    # The development environment has all that the demo needs.
    python = python_of(ROOT / ".venv")
    has_all = (
        python.exists()
        and not subprocess.run(
            [python, "-c", f"import openai, agl_core, {', '.join(DEMO_PLUGINS)}"],
            cwd=ROOT,
            capture_output=True,
            check=False,
        ).returncode
    )
    run(python if has_all else demo_python(), "examples/room_booking/main.py", *arguments)


def test(arguments: Sequence[str]) -> None:
    run(dev_python(), "-m", "pytest", *arguments)


def slow(arguments: Sequence[str]) -> None:
    run(dev_python(), "-m", "pytest", "-m", "slow and not benchmark", *arguments)


def lint(arguments: Sequence[str]) -> None:
    python = dev_python()
    run(python, "-m", "ruff", "check", *arguments)
    run(python, "-m", "ruff", "format", "--check", *arguments)


def types(arguments: Sequence[str]) -> None:
    run(dev_python(), "-m", "pyright", *arguments)


def cover(arguments: Sequence[str]) -> None:
    python = dev_python()
    run(python, "-m", "coverage", "erase")
    # Not pytest-cov: pytest's plugins import the core before it starts to measure.
    run(python, "-m", "coverage", "run", "-m", "pytest", *arguments)
    run(python, "-m", "coverage", "combine", "--quiet")
    run(
        python,
        "-m",
        "coverage",
        "report",
        "--skip-covered",
        f"--fail-under={LINE_COVERAGE_PERCENT}",
    )
    run(python, "-m", "coverage", "report", f"--include={LIFECYCLE_FILE}", "--fail-under=100")


def bench(arguments: Sequence[str]) -> None:
    files = [f"tests/benchmark/bench_{name}.py" for name in arguments] or ["tests/benchmark"]
    run(dev_python(), "-m", "pytest", "-m", "benchmark", "-s", "--timeout=0", *files)


def plugins(arguments: Sequence[str]) -> None:
    """Build every wheel, then test each plugin alone with the core's wheel."""
    folders = plugin_folders(arguments)

    def test_alone(folder: Path) -> None:
        pytest_alone(folder, alone(folder, build_wheels()), "not benchmark and not heavy")

    every({folder.name: partial(test_alone, folder) for folder in folders})


def heavy(arguments: Sequence[str]) -> None:
    """Run what needs real vLLM, torch or agent frameworks, each in an environment of its own."""
    examples = {path.stem: path for path in sorted((ROOT / "tests/envs/examples").glob("*.txt"))}
    names = [name for name in arguments if name not in examples]
    folders = plugin_folders(names) if names or not arguments else []
    folders = [folder for folder in folders if has_heavy_tests(folder)]

    def test_example(name: str) -> None:
        python = environment(ENVS / name, ["-r", str(examples[name])], [examples[name]])
        run(python, "-m", "pytest", f"tests/examples/{name}", "-m", "heavy")

    def test_plugin(folder: Path) -> None:
        vllm = {"AGL_TEST_VLLM_PYTHON": str(vllm_python())}
        pytest_alone(folder, alone(folder, build_wheels(), fresh=False), "heavy", vllm)

    jobs = {n: partial(test_example, n) for n in examples if not arguments or n in arguments}
    every(jobs | {folder.name: partial(test_plugin, folder) for folder in folders})


def plugin_folders(names: Sequence[str]) -> list[Path]:
    """Return the folders of the named plugins, or of all."""
    folders = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
    unknown = set(names) - {folder.name for folder in folders}
    if unknown:
        sys.exit(f"no such plugin: {', '.join(sorted(unknown))}")
    return [folder for folder in folders if not names or folder.name in names]


def has_heavy_tests(folder: Path) -> bool:
    tests = ROOT / "tests/plugins" / folder.name
    return any("mark.heavy" in path.read_text() for path in tests.rglob("test_*.py"))


@cache
def build_wheels() -> Path:
    """Build the core's wheel and every plugin's, since plugins' tests use each other; once."""
    wheels = ENVS / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    builder = tools()
    for folder in (ROOT, *plugin_folders([])):
        run(builder, "-m", "build", "--no-isolation", "--wheel", "--outdir", wheels, folder)
    return wheels


def alone(folder: Path, wheels: Path, *, fresh: bool = True) -> Path:
    """Install one plugin's wheel with the core's in an environment of its own; return its Python.

    Args:
        folder: The plugin.
        wheels: What to install of ours, always as it is now.
        fresh: Make the environment anew. False: one that is there keeps the libraries it has.
    """
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    path = ENVS / folder.name
    if fresh or not python_of(path).exists():
        shutil.rmtree(path, ignore_errors=True)
        create(path)
    extra = "[test]" if "test" in project.get("optional-dependencies", {}) else ""
    names = [wheel.name.split("-")[0] for wheel in wheels.glob("*.whl")]
    # uv takes a wheel of a name and version that it knows for the one it knows, however new it is.
    anew = [f"--{what}-package={name}" for what in ("refresh", "reinstall") for name in names]
    install(
        *(path, "--find-links", wheels, *anew),
        *(f"{project['name']}{extra}", "pytest", "pytest-asyncio", "pytest-timeout"),
    )
    return python_of(path)


def tools() -> Path:
    return environment(ENVS / "tools", ["build>=1.2", "hatchling>=1.25", "uv>=0.5"], [])


def install(path: Path, *arguments: str | Path) -> None:
    """Install into an environment with uv, which takes seconds where pip takes minutes."""
    links = [f"--find-links={link}" for link in os.environ.get("PIP_FIND_LINKS", "").split()]
    command = ("-m", "uv", "pip", "install", "--quiet", "--compile-bytecode")
    run(tools(), *command, "--python", python_of(path), *links, *arguments)


def pytest_alone(
    folder: Path, python: Path, marked: str, env: dict[str, str] | None = None
) -> None:
    # -P keeps the source tree off the path: what is tested is what was installed.
    run(python, "-P", "-m", "pytest", f"tests/plugins/{folder.name}", "-m", marked, env=env)


def vllm_python() -> Path:
    """Return a Python that has vLLM for the CPU, whose pins agree with nobody else's."""
    path, needs = ENVS / "vllm", ROOT / "tests/envs"
    requirements, overrides = needs / "vllm.txt", needs / "vllm-overrides.txt"
    stamp = path / "made-from"
    wanted = requirements.read_text() + overrides.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print("making .envs/vllm ...", flush=True)
        create(path)
        install(path, "--override", overrides, "--requirement", requirements)
        stamp.write_text(wanted)
    return python_of(path)


# What runs with the oldest versions: the rooms that lean on libraries most, without the slow parts.
LOWEST_TESTS = ["types", "store", "otel", "tracer", "emitter", "adapter", "plugins", "server"]


def lowest(arguments: Sequence[str]) -> None:
    """Install the core with the lower bound of each of its requirements, and run its core tests."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = [requirement.replace(">=", "==") for requirement in project["dependencies"]]
    test_tools = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis"]
    python = editable(ENVS / "lowest", "demo", DEV_PLUGINS, *oldest, *test_tools)
    run(python, "-m", "pip", "check")
    tests = [f"tests/core/{room}" for room in LOWEST_TESTS]
    # Old releases warn about this Python in ways that newer ones have mended.
    run(python, "-m", "pytest", "-W", "default::DeprecationWarning", *(arguments or tests))


def ci(arguments: Sequence[str]) -> None:
    """Run every check in CI's order, with the time each took."""
    del arguments
    steps = (lint, types, cover, slow, plugins, heavy, lowest)
    every({step.__name__: partial(step, []) for step in steps})


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    function.__name__: function
    for function in (demo, test, slow, lint, types, cover, bench, plugins, heavy, lowest, ci)
}


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 -- run with whatever python3 is at hand
        sys.exit(f"agl needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__)
        sys.exit(0 if {"-h", "--help"} & set(sys.argv) else 2)
    # A shell starts background jobs with Ctrl+C ignored, and what we start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        COMMANDS[sys.argv[1]](sys.argv[2:])
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
