#!/usr/bin/env python3
"""Every development command. Needs only Python: each command makes the environment it uses.

    python3 dev.py demo                runs the example: an agent gets better on a task set
    python3 dev.py test [ARGS...]      the default test suite; ARGS go to pytest
    python3 dev.py slow [ARGS...]      the slow tests
    python3 dev.py lint                ruff, and one version for all packages
    python3 dev.py types               pyright
    python3 dev.py cover [ARGS...]     the default suite with its coverage gate
    python3 dev.py bench [NAME...]     the benchmarks
    python3 dev.py mutate [NAME...]    the share of small faults in components that the conformance
                                       suites catch; see devtools/mutation.py
    python3 dev.py dist                builds, checks and installs every wheel and sdist
    python3 dev.py plugins [NAME...]   plugins alone and their tests, on wheels; --changed [BASE]:
                                       those that differ from the branch BASE (default: main)
    python3 dev.py heavy [NAME...]     the tests that need real vLLM, torch and agent frameworks
    python3 dev.py docs [PAGE...]      README.md and docs/, typed into a fresh clone
    python3 dev.py settings            writes docs/settings.md from the code
    python3 dev.py lowest [ARGS...]    the core and the bundle with the oldest versions they allow
    python3 dev.py version [X.Y.Z]     prints the version of all packages, or sets it
    python3 dev.py ci [STEP...]        all of it, as CI does

Tests run in several processes; `-n0` runs them in one, which `--pdb` and `-s` need. Tests marked
`timing` run after the others, one at a time. Environments live in .venv and .envs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path

from devtools import distributions, environments, packages, walk_docs
from devtools.environments import ENVS, editable, environment
from devtools.packages import Package
from devtools.process import ROOT, every, exit_code, run

DEMO_PLUGINS = ("agl_bundle", "agl_algo_apo")
LIFECYCLE_FILE = "agl_core/lifecycle.py"
LINE_COVERAGE_PERCENT = 90
# Tests wait for sockets and processes about half of their time.
WORKERS = 2 * (os.cpu_count() or 1)
NOTHING_COLLECTED = 5


# -- environments ----------------------------------------------------------------------------------


def demo_python() -> Path:
    folders = [package.folder for package in packages.with_requirements(DEMO_PLUGINS)]
    return editable(ROOT / ".venv", "demo", folders)


def dev_python() -> Path:
    """Return the Python of the development environment: the core and every light plugin."""
    folders = [package.folder for package in packages.light_plugins()]
    return editable(ROOT / ".venv", "dev", folders)


def demo(arguments: Sequence[str]) -> None:
    # The development environment has all that the demo needs.
    dev = environments.python_of(ROOT / ".venv")
    modules = ("openai", packages.CORE_MODULE, *DEMO_PLUGINS)
    probe = f"from importlib.util import find_spec as f; exit(not all(map(f, {modules})))"
    usable = dev.exists() and not exit_code(dev, "-c", probe)
    run(dev if usable else demo_python(), "examples/room_booking/main.py", *arguments)


# -- tests -----------------------------------------------------------------------------------------


def pytest(
    command: Sequence[str | Path], *arguments: str | Path, env: Mapping[str, str] | None = None
) -> None:
    """Run tests in several processes, then those marked ``timing`` one at a time.

    Args:
        command: The command that runs pytest: a Python, its options and ``-m pytest``.
        arguments: Arguments to pytest; they may replace the number of processes.
        env: What to add to the environment.
    """
    # A run that goes on after the crash of a worker can wait for it for ever.
    crashes = ("--max-worker-restart", "0")
    spread = ("-n", str(WORKERS), "--dist", "loadgroup", *crashes, "--timing", "skip")
    codes = {
        exit_code(*command, *spread, *arguments, env=env),
        exit_code(*command, *arguments, "-n0", "--timing", "only", env=env),
    }
    if codes != {NOTHING_COLLECTED}:
        codes -= {NOTHING_COLLECTED}
    if any(codes):
        sys.exit(max(codes))


def pytest_of(python: Path) -> list[str | Path]:
    return [python, "-m", "pytest"]


def test(arguments: Sequence[str]) -> None:
    pytest(pytest_of(dev_python()), *arguments)


def slow(arguments: Sequence[str]) -> None:
    pytest(pytest_of(dev_python()), "-m", "slow and not benchmark and not heavy", *arguments)


def cover(arguments: Sequence[str]) -> None:
    """Run the default suite with branch coverage and hold it to the gates.

    Not pytest-cov: pytest's plugins import the core before it starts to measure. Coverage starts
    with each worker's interpreter instead, out of a path file of its own.
    """
    python = dev_python()
    measured = [python, "-m", "coverage"]
    run(*measured, "erase")
    pytest(
        pytest_of(python), *arguments, env={"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml")}
    )
    run(*measured, "combine", "--quiet")
    run(*measured, "report", "--skip-covered", f"--fail-under={LINE_COVERAGE_PERCENT}")
    run(*measured, "report", f"--include={LIFECYCLE_FILE}", "--fail-under=100")


def bench(arguments: Sequence[str]) -> None:
    files = [f"tests/benchmark/bench_{name}.py" for name in arguments] or ["tests/benchmark"]
    run(*pytest_of(dev_python()), "-m", "benchmark", "-s", "--timeout=0", *files)


def mutate(arguments: Sequence[str]) -> None:
    """Run mutants of components under their conformance suites; takes minutes per component."""
    run(dev_python(), "-m", "devtools.mutation", *arguments)


# -- checks ----------------------------------------------------------------------------------------


def lint(arguments: Sequence[str]) -> None:
    python = dev_python()
    run(python, "-m", "ruff", "check", *arguments)
    run(python, "-m", "ruff", "format", "--check", *arguments)
    run(str(Path(python).with_name("lint-imports")), "--no-cache")  # the layers of the core
    problems = packages.version_problems() + packages.workspace_problems()
    problems += packages.licence_problems() + packages.readme_problems()
    if problems:
        sys.exit("\n".join(problems))


def types(arguments: Sequence[str]) -> None:
    run(dev_python(), "-m", "pyright", *arguments)


def version(arguments: Sequence[str]) -> None:
    if arguments:
        packages.set_version(arguments[0])
    else:
        print(packages.core().version)


# -- distributions ---------------------------------------------------------------------------------


def dist(arguments: Sequence[str]) -> None:
    """Build every wheel and sdist, check them, and install them together."""
    del arguments
    distributions.check()
    distributions.install_together()


def plugins(arguments: Sequence[str]) -> None:
    """Test plugins as installed from wheels.

    Each light one is tried alone, without tests; the tests of light ones run in one environment,
    those of each heavy one in an environment of its own.
    """
    if arguments[:1] == ["--changed"]:
        base = arguments[1] if len(arguments) > 1 else "main"
        chosen = packages.changed_since(base)
        print(f"differ from {base}: {', '.join(p.module for p in chosen) or 'none'}", flush=True)
    else:
        chosen = packages.named(arguments)
    light = [package for package in chosen if not package.heavy]
    jobs: dict[str, Callable[[], None]] = {}
    if light:
        jobs["each light plugin alone"] = partial(distributions.smoke_alone, light)
    if any(package.tests.exists() for package in light):
        jobs["light plugins together"] = partial(test_together, light)
    every(jobs | {p.module: partial(test_alone, p) for p in chosen if p.heavy})


def test_together(light: Sequence[Package]) -> None:
    python = distributions.light_together()
    folders = [package.tests for package in light if package.tests.exists()]
    pytest(installed(python), "-m", "not benchmark and not heavy", *folders, env=tests_on_path())


def test_alone(package: Package) -> None:
    python = distributions.alone(package)
    processes = () if package.parallel else ("-n0",)
    marked = ("-m", "not benchmark and not heavy")
    pytest(installed(python), *marked, *processes, package.tests, env=tests_on_path())


def installed(python: Path) -> list[str | Path]:
    """Return what runs pytest on installed packages: -P keeps the working tree off the path."""
    return [python, "-P", "-m", "pytest"]


def tests_on_path() -> dict[str, str]:
    """Return the variables with which child processes of tests import test modules by name.

    A spawned process imports ``tests.plugins...``. The repository's root must not be on its path,
    since the working tree would hide what is installed; a folder that holds only the tests may.
    """
    folder = ENVS / "tests-path"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "tests"
    if not link.exists():
        link.symlink_to(ROOT / "tests", target_is_directory=True)
    return {"PYTHONPATH": str(folder)}


def heavy(arguments: Sequence[str]) -> None:
    """Run what needs real vLLM, torch or agent frameworks, each in an environment of its own."""
    examples = {path.stem: path for path in sorted((ROOT / "tests/envs/examples").glob("*.txt"))}
    names = [name for name in arguments if name not in examples]
    chosen = packages.named(names) if names or not arguments else []
    chosen = [package for package in chosen if has_heavy_tests(package)]

    def test_example(name: str) -> None:
        python = environment(ENVS / name, ["-r", examples[name]], [examples[name]])
        run(*pytest_of(python), f"tests/examples/{name}", "-m", "heavy")

    def test_plugin(package: Package) -> None:
        vllm = {"AGL_TEST_VLLM_PYTHON": str(vllm_python())}
        python = distributions.alone(package, fresh=False)
        env = vllm | tests_on_path()
        run(*installed(python), package.tests, "-m", "heavy", env=env)

    jobs = {n: partial(test_example, n) for n in examples if not arguments or n in arguments}
    every(jobs | {package.module: partial(test_plugin, package) for package in chosen})


def has_heavy_tests(package: Package) -> bool:
    return any("mark.heavy" in path.read_text() for path in package.tests.rglob("test_*.py"))


@cache
def vllm_python() -> Path:
    """Return a Python that has vLLM for the CPU, whose pins agree with no other package's."""
    needs = ROOT / "tests/envs"
    requirements, overrides = needs / "vllm.txt", needs / "vllm-overrides.txt"
    return environment(
        ENVS / "vllm",
        ["--override", overrides, "--requirement", requirements],
        [requirements, overrides],
    )


# What runs with the oldest versions: the rooms that lean on libraries most, without the slow parts.
LOWEST_TESTS = (
    *("tests/core/adapter", "tests/core/emitter", "tests/core/genai", "tests/core/otel"),
    *("tests/core/plugins", "tests/core/store", "tests/core/tracer", "tests/core/types"),
    *("tests/plugins/agl_serving", "tests/plugins/agl_store_http/server"),
)


def lowest(arguments: Sequence[str]) -> None:
    """Run tests of the core and of the bundle with the lowest version of each requirement."""
    bundled = packages.with_requirements(["agl_bundle"])
    required = chain(*(package.dependencies for package in (packages.core(), *bundled)))
    oldest = sorted({line.replace(">=", "==") for line in required if "agl-" not in line})
    folders = [
        package.folder for package in packages.with_requirements([*DEMO_PLUGINS, "agl_testing"])
    ]
    tools = ("anthropic>=0.40", *distributions.TEST_TOOLS)
    python = editable(ENVS / "lowest", "demo", folders, *oldest, *tools)
    environments.uv("pip", "check", "--quiet", "--python", python)
    # Old releases warn about this Python in ways that newer ones have mended.
    warnings = ("-W", "default::DeprecationWarning")
    pytest(pytest_of(python), *warnings, *(arguments or LOWEST_TESTS))


def docs(arguments: Sequence[str]) -> None:
    """Walk README.md and docs/ in a fresh clone and environment."""
    walk_docs.walk(arguments)


def settings(arguments: Sequence[str]) -> None:
    """Write docs/settings.md from the code."""
    run(dev_python(), "-m", "devtools.settings_page", *arguments)


def ci(arguments: Sequence[str]) -> None:
    """Run every check, or the named ones, in CI's order, with the time each took."""
    steps = {step.__name__: step for step in STEPS}
    unknown = set(arguments) - set(steps)
    if unknown:
        sys.exit(f"no such step: {', '.join(sorted(unknown))}")
    every({name: partial(steps[name], []) for name in steps if not arguments or name in arguments})


# The steps whose last run executes tests come last: CI reads the closing line of the last runner.
STEPS = (lint, types, cover, slow, dist, docs, lowest, plugins, heavy)
COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    function.__name__: function
    for function in (*STEPS, demo, test, bench, mutate, settings, version, ci)
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__)
        sys.exit(0 if {"-h", "--help"} & set(sys.argv) else 2)
    # Without bytecode on disk, each of the many processes compiles everything that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A shell starts background jobs with Ctrl+C ignored, and child processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        COMMANDS[sys.argv[1]](sys.argv[2:])
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
