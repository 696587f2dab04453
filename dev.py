#!/usr/bin/env python3
"""Every development command. Needs only Python: each command makes the environment it uses.

    python3 dev.py demo                runs the example: an agent gets better on a task set
    python3 dev.py test [ARGS...]      the default test suite; ARGS go to pytest
    python3 dev.py slow [ARGS...]      the slow tests
    python3 dev.py lint                ruff, and one version for all packages
    python3 dev.py types               pyright
    python3 dev.py cover [ARGS...]     the default suite on wheels, with its coverage gate
    python3 dev.py bench [NAME...]     the benchmarks
    python3 dev.py mutate [NAME...]    the share of small faults in components that the conformance
                                       suites catch; see devtools/mutation.py
    python3 dev.py dashboard           builds the page of agl-dashboard (Node.js)
    python3 dev.py dist                builds, checks and installs every wheel and sdist
    python3 dev.py plugins [NAME...]   plugins alone and their tests, on wheels; --changed [BASE]:
                                       those that differ from the branch BASE (default: main);
                                       without arguments, tests that `cover` does not run
    python3 dev.py heavy [NAME...]     the tests that need real vLLM, torch, agent frameworks and
                                       a browser
    python3 dev.py docs [PAGE...]      the site; README.md and docs/, typed into a fresh clone; the
                                       quick start and the tutorials, from wheels
    python3 dev.py site                builds the site of the documentation in build/site/html
    python3 dev.py settings            writes docs/settings.md from the code
    python3 dev.py llms                writes llms.txt, the list of pages for language models
    python3 dev.py performance         runs benchmarks and writes docs/performance.md
    python3 dev.py scale               runs a benchmark of minutes and writes docs/scale.md
    python3 dev.py picture             draws docs/images: the demo, which it runs, and the concepts
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
from functools import partial
from itertools import chain
from pathlib import Path

from devtools import dashboard as dashboard_page
from devtools import (
    debian,
    demo_picture,
    diagrams,
    distributions,
    environments,
    llms_page,
    newcomer,
    packages,
    performance_page,
    prometheus,
    scale_page,
    walk_docs,
)
from devtools.environments import ENVS, editable, environment
from devtools.packages import Package
from devtools.process import CORES, ROOT, every, exit_code, once, run

DEMO_PLUGINS = ("agl_bundle", "agl_algo_apo")
LIFECYCLE_FILE = "*/agl_core/lifecycle.py"
LINE_COVERAGE_PERCENT = 90
# Tests wait for sockets and processes about half of their time.
WORKERS = 2 * CORES
NOTHING_COLLECTED = 5
VLLM_PYTHON = "AGL_TEST_VLLM_PYTHON"


# -- environments ----------------------------------------------------------------------------------


def demo_python() -> Path:
    folders = [package.folder for package in packages.with_requirements(DEMO_PLUGINS)]
    return editable(ROOT / ".venv", "demo", folders)


@once
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
    return [python, "-m", "pytest", *second_try()]


def second_try() -> list[str]:
    """Return what makes CI, whose machine has other guests, run a failed test once more.

    The summary names the tests that needed it. Each is a fault to mend, in the code or the test.
    """
    return ["--reruns", "1", "-raR"] if os.environ.get("CI") else []


def test(arguments: Sequence[str]) -> None:
    pytest(pytest_of(dev_python()), *arguments)


def slow(arguments: Sequence[str]) -> None:
    pytest(pytest_of(dev_python()), "-m", "slow and not benchmark and not heavy", *arguments)


def cover(arguments: Sequence[str]) -> None:
    """Run the default suite with branch coverage and hold it to the gates.

    It runs on wheels, so that the step `plugins` need not run the same tests once more.

    Not pytest-cov: pytest's plugins import the core before it starts to measure. Coverage starts
    with each worker's interpreter instead, out of a path file of its own.
    """
    python = distributions.light_together()
    measured = [python, "-P", "-m", "coverage"]
    run(*measured, "erase")
    measure = {"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml")}
    pytest(installed(python), *arguments, env=tests_on_path() | measure)
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


def dashboard(arguments: Sequence[str]) -> None:
    """Build the page of the dashboard; an editable install serves it."""
    del arguments
    dashboard_page.build()


def dist(arguments: Sequence[str]) -> None:
    """Build every wheel and sdist, check them, and install them together."""
    del arguments
    distributions.check()
    distributions.install_together()


def plugins(arguments: Sequence[str]) -> None:
    """Test plugins as installed from wheels.

    Each light one is tried alone, without tests; the tests of light ones run in one environment,
    those of each heavy one in an environment of its own. Without arguments, tests of the default
    suite are left to `cover`, which runs them in the same environment.
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
    by_default = () if arguments else packages.tested_by_default()
    tested = [p.tests for p in light if p.tests.exists() and p.tests not in by_default]
    if tested:
        jobs["light plugins together"] = partial(test_together, tested)
    every(
        jobs | {p.module: partial(test_alone, p) for p in chosen if p.heavy},
        side_by_side=[p.module for p in chosen if p.heavy and not p.exclusive],
    )


def test_together(folders: Sequence[Path]) -> None:
    python = distributions.light_together()
    marked = ("-m", "not benchmark and not heavy")
    pytest(installed(python), *marked, *folders, env=tests_on_path())


def test_alone(package: Package) -> None:
    python = distributions.alone(package)
    # Jobs that run side by side share the processes.
    workers = WORKERS if package.exclusive else WORKERS // CORES
    processes = ("-n", str(workers) if package.parallel else "0")
    marked = ("-m", "not benchmark and not heavy")
    pytest(installed(python), *marked, *processes, package.tests, env=tests_on_path())


def installed(python: Path) -> list[str | Path]:
    """Return what runs pytest on installed packages: -P keeps the working tree off the path."""
    return [python, "-P", "-m", "pytest", *second_try()]


def tests_on_path() -> dict[str, str]:
    """Return the variables with which child processes of tests import test modules by name.

    A spawned process imports ``tests.plugins...``. The repository's root must not be on its path,
    since the working tree would hide what is installed; a folder that holds only the tests, and
    the tools that some of them test, may.
    """
    folder = ENVS / "tests-path"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tests", "devtools"):
        link = folder / name
        if not link.exists():
            link.symlink_to(ROOT / name, target_is_directory=True)
    return {"PYTHONPATH": str(folder)}


def heavy(arguments: Sequence[str]) -> None:
    """Run what needs vLLM, torch, agent frameworks or a browser, each in its own environment."""
    examples = {path.stem: path for path in sorted((ROOT / "tests/envs/examples").glob("*.txt"))}
    names = [name for name in arguments if name not in examples]
    chosen = packages.named(names) if names or not arguments else []
    chosen = [package for package in chosen if mentioned_in_tests(package, "mark.heavy")]
    if any(mentioned_in_tests(package, "chromium") for package in chosen):
        debian.install("chromium")

    def test_example(name: str) -> None:
        python = environment(ENVS / name, ["-r", examples[name]], [examples[name]])
        run(*pytest_of(python), f"tests/examples/{name}", "-m", "heavy")

    def test_plugin(package: Package) -> None:
        env = tests_on_path()
        if mentioned_in_tests(package, VLLM_PYTHON):
            env[VLLM_PYTHON] = str(vllm_python())
        python = distributions.alone(package, fresh=False)
        run(*installed(python), package.tests, "-m", "heavy", env=env)

    jobs = {n: partial(test_example, n) for n in examples if not arguments or n in arguments}
    every(
        # The longest jobs are among the packages; they start first.
        {package.module: partial(test_plugin, package) for package in chosen} | jobs,
        side_by_side=[*jobs, *(package.module for package in chosen if not package.exclusive)],
    )


def mentioned_in_tests(package: Package, word: str) -> bool:
    return any(word in path.read_text() for path in package.tests.rglob("*.py"))


@once
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
    *("tests/core/emitter", "tests/core/genai", "tests/core/otel", "tests/plugins/agl_adapters"),
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
    # Later releases of openai pass pydantic 2.10 a value that it does not take.
    tools = ("anthropic>=0.40", "openai>=1.60,<2.9", *distributions.TEST_TOOLS)
    python = editable(ENVS / "lowest", "demo", folders, *oldest, *tools)
    environments.uv("pip", "check", "--quiet", "--python", python)
    # Old releases warn about this Python in ways that newer ones have mended.
    warnings = ("-W", "default::DeprecationWarning")
    pytest(pytest_of(python), *warnings, *(arguments or LOWEST_TESTS))


def docs(arguments: Sequence[str]) -> None:
    """Build the site, walk the pages in a fresh clone, and a newcomer's path from wheels."""
    if not arguments:
        # Each is one process at a time, which mostly waits for pip. The longest starts first.
        jobs: dict[str, Callable[[], object]] = {
            "the walk": partial(walk_docs.walk, []),
            "a newcomer's path": newcomer.walk,
            "the site": partial(site, []),
        }
        every(jobs, side_by_side=jobs)
        return
    path = [page for page in newcomer.PATH if page.as_posix() in arguments]
    others = [name for name in arguments if Path(name) not in path]
    if others:
        walk_docs.walk(others)
    if path:
        newcomer.walk(path)


def site(arguments: Sequence[str]) -> None:
    """Build the site of the documentation; a broken link or a missing name is an error."""
    del arguments
    needs = ROOT / "devtools/docs_site/requirements.txt"
    python = environment(ENVS / "site", ["--requirement", needs], [needs])
    run(python, "-m", "devtools.docs_site.build")


def settings(arguments: Sequence[str]) -> None:
    """Write docs/settings.md from the code."""
    run(dev_python(), "-m", "devtools.settings_page", *arguments)


def picture(arguments: Sequence[str]) -> None:
    """Run the demo and draw the picture of the README, and those of the concept pages."""
    del arguments
    diagrams.write()
    demo_picture.write(dev_python())


def llms(arguments: Sequence[str]) -> None:
    """Write llms.txt from the navigation of the site and the pages."""
    del arguments
    llms_page.write()


def performance(arguments: Sequence[str]) -> None:
    """Run benchmarks and write docs/performance.md from their output."""
    performance_page.write(dev_python(), tuple(arguments) or performance_page.BENCHMARKS)


def scale(arguments: Sequence[str]) -> None:
    """Measure what a rollout costs each part of a cluster, and write docs/scale.md."""
    del arguments
    scale_page.write(dev_python())


def ci(arguments: Sequence[str]) -> None:
    """Run every check, or the named ones, in CI's order, with the time each took."""
    steps = {step.__name__: step for step in STEPS}
    unknown = set(arguments) - set(steps)
    if unknown:
        sys.exit(f"no such step: {', '.join(sorted(unknown))}")
    debian.install()
    prometheus.install()
    chosen: dict[str, Callable[[], None]] = {
        name: partial(steps[name], []) for name in steps if not arguments or name in arguments
    }
    if lint.__name__ in chosen and types.__name__ in chosen:
        # Each keeps one core busy; nothing in them has a deadline.
        both = {name: chosen.pop(name) for name in (types.__name__, lint.__name__)}
        chosen = {"types and lint": partial(every, both, side_by_side=both)} | chosen
    every(chosen)


# The steps whose last run executes tests come last: CI reads the closing line of the last runner.
STEPS = (lint, types, cover, slow, dist, docs, lowest, plugins, heavy)
COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    function.__name__: function
    for function in (
        *STEPS,
        demo,
        dashboard,
        test,
        bench,
        mutate,
        settings,
        site,
        picture,
        performance,
        scale,
        llms,
        version,
        ci,
    )
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
