#!/usr/bin/env python3
"""Every development command. Needs only Python: each command makes the environment it uses.

    python3 dev.py demo                runs the example: an agent gets better on a task set
    python3 dev.py test [ARGS...]      the default test suite; ARGS go to pytest
    python3 dev.py slow [ARGS...]      the slow tests
    python3 dev.py lint                ruff; one version for all packages, and their lists
    python3 dev.py types               pyright
    python3 dev.py cover               the tests of light packages on wheels, slow ones too, with
                                       the coverage gate
    python3 dev.py lifecycle           the tests of the lifecycle, which cover all of its rules
    python3 dev.py bench [NAME...]     the benchmarks
    python3 dev.py mutate [NAME...]    the share of small faults in components that the conformance
                                       suites catch; see devtools/mutation.py
    python3 dev.py record [NAME...]    records what each test file uses, for `dev.py ci`
    python3 dev.py proof [PART...]     proves by mutants that the tests which `dev.py ci` chooses
                                       are enough, after `record`; takes hours
    python3 dev.py dashboard           builds the page of agl-dashboard (Node.js)
    python3 dev.py dist [NAME...]      builds, checks and installs every wheel and sdist
    python3 dev.py plugins [NAME...]   plugins alone and their tests, on wheels; without arguments,
                                       tests that `test` does not run
    python3 dev.py heavy [NAME...]     the tests that need real vLLM, torch, agent frameworks and
                                       a browser
    python3 dev.py gpu [ARGS...]       the tests that measure a GPU, and a table of what they
                                       measured; --help says more
    python3 dev.py docs [PAGE...]      the site; README.md and docs/, typed into a fresh clone; the
                                       quick start and the tutorials, from wheels
    python3 dev.py site                builds the site of the documentation in build/site/html
    python3 dev.py packages            writes the lists of packages, after a new one or a change of
                                       what a package declares
    python3 dev.py settings            writes docs/settings.md from the code
    python3 dev.py llms                writes llms.txt, the list of pages for language models
    python3 dev.py performance         runs benchmarks, each three times (--runs=N), and writes
                                       docs/performance.md
    python3 dev.py scale               runs a benchmark of minutes and writes docs/scale.md
    python3 dev.py picture             draws docs/images: the demo, which it runs, and the concepts
    python3 dev.py lowest [ARGS...]    what users install, with the oldest versions that it allows
    python3 dev.py version [X.Y.Z]     prints the version of all packages, or sets it
    python3 dev.py ci [--all|--plan]   what the changes since the last gate can break, as CI runs
                                       it; --help says more

Tests run in several processes; `-n0` runs them in one, which `--pdb` and `-s` need. Tests marked
`timing` run after the others, one at a time. Environments live in .venv and .envs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from devtools import (
    dashboard as dashboard_page,
    demo_picture,
    diagrams,
    distributions,
    environments,
    gate,
    llms_page,
    newcomer,
    package_lists,
    packages as manifests,
    performance_page,
    scale_page,
    suites,
    type_checker,
    walk_docs,
)
from devtools.environments import ENVS, editable, environment
from devtools.process import ROOT, every, exit_code, run

DEMO_PACKAGES = (manifests.FOR_USERS, "agl_algo_apo")
COVERED_PERCENT = 90
"""Smallest share of all installed packages that the default suite covers."""


# -- environments ----------------------------------------------------------------------------------


def demo_python() -> Path:
    return editable(ROOT / ".venv", "demo", manifests.with_requirements(DEMO_PACKAGES))


def demo(arguments: Sequence[str]) -> None:
    # The development environment has all that the demo needs.
    dev = environments.python_of(ROOT / ".venv")
    modules = ("openai", manifests.CORE_MODULE, *DEMO_PACKAGES)
    probe = f"from importlib.util import find_spec as f; exit(not all(map(f, {modules})))"
    usable = dev.exists() and not exit_code(dev, "-c", probe)
    run(dev if usable else demo_python(), "examples/room_booking/main.py", *arguments)


# -- tests -----------------------------------------------------------------------------------------


def test(arguments: Sequence[str]) -> None:
    suites.default(arguments)


def slow(arguments: Sequence[str]) -> None:
    suites.pytest(suites.pytest_of(suites.dev_python()), "-m", suites.SLOW, *arguments)


def cover(arguments: Sequence[str]) -> None:
    """Run the tests of light packages with branch coverage and hold the default ones to the gates.

    They run on wheels and record what they use. Not pytest-cov: pytest's plugins import the core
    before it starts to measure. Coverage starts with each interpreter instead, out of a path file
    of its own.
    """
    del arguments
    python = distributions.light_together()
    gate.record([gate.LIGHT])
    data = gate.unmarked_data(gate.LIGHT)
    measured = (python, "-P", "-m", "coverage")
    run(*measured, "combine", "--quiet", f"--rcfile={data / 'coveragerc'}", data)
    # Of programs that tests wrote into their folders only the data are left.
    report = (
        *measured,
        "report",
        "--skip-covered",
        "--ignore-errors",
        f"--data-file={data / 'data'}",
    )
    run(*report, "--include=*/site-packages/agl_*/*", f"--fail-under={COVERED_PERCENT}")


def lifecycle(arguments: Sequence[str]) -> None:
    """Hold the tests of the lifecycle alone to all lines and branches of its rules."""
    python, rules = suites.dev_python(), "plugins/agl_store_kit/src/agl_store_kit/lifecycle.py"
    measured = (python, "-m", "coverage")
    data = f"--data-file={ENVS / 'lifecycle-coverage'}"
    tests = ("-m", "pytest", "-q", "-n0", "tests/plugins/agl_store_kit/lifecycle", *arguments)
    run(*measured, "run", "--branch", f"--include=*/{rules}", data, *tests)
    run(*measured, "report", data, "--show-missing", "--fail-under=100")


def bench(arguments: Sequence[str]) -> None:
    files = [f"tests/benchmark/bench_{name}.py" for name in arguments] or ["tests/benchmark"]
    run(*suites.pytest_of(suites.dev_python()), "-m", "benchmark", "-s", "--timeout=0", *files)


def record(arguments: Sequence[str]) -> None:
    """Record what each test file uses, for the choice of tests; see :mod:`devtools.gate`."""
    gate.record(arguments)


def mutate(arguments: Sequence[str]) -> None:
    """Run mutants of components under their conformance suites; takes minutes per component."""
    run(suites.dev_python(), "-m", "devtools.mutation", *arguments)


def proof(arguments: Sequence[str]) -> None:
    """Prove by mutants that the tests which a gate chooses are enough; takes hours."""
    run(suites.dev_python(), "-m", "devtools.gate.proof", *arguments)


# -- checks ----------------------------------------------------------------------------------------


def lint(arguments: Sequence[str]) -> None:
    python = suites.dev_python()
    run(python, "-m", "ruff", "check", *arguments)
    run(python, "-m", "ruff", "format", "--check", *arguments)
    run(str(Path(python).with_name("lint-imports")), "--no-cache")  # the layers of the core
    problems = manifests.version_problems() + manifests.manifest_problems()
    problems += manifests.licence_problems() + manifests.readme_problems()
    problems += package_lists.problems()
    if not dashboard_page.is_current():  # before any job that would build it
        problems.append("the dashboard's page is not that of its sources: python3 dev.py dashboard")
    if problems:
        sys.exit("\n".join(problems))
    if new := [package.name for package in package_lists.unlisted()]:
        print(f"not listed yet: {', '.join(new)}; python3 dev.py packages lists them")


def types(arguments: Sequence[str]) -> None:
    type_checker.write()
    run(suites.dev_python(), "-m", "pyright", *arguments)


def version(arguments: Sequence[str]) -> None:
    if arguments:
        manifests.set_version(arguments[0])
        package_lists.write()
    else:
        print(manifests.core().version)


# -- distributions ---------------------------------------------------------------------------------


def dashboard(arguments: Sequence[str]) -> None:
    """Build the page of the dashboard; an editable install serves it."""
    del arguments
    dashboard_page.build()


def dist(arguments: Sequence[str]) -> None:
    """Build every wheel and sdist, check them, and install them together.

    With arguments, only those of the named packages are built and checked.
    """
    if arguments:
        distributions.check_some(manifests.named(arguments))
        return
    distributions.check()
    distributions.install_together()


def plugins(arguments: Sequence[str]) -> None:
    """Test plugins as installed from wheels.

    Each light one is tried alone, without tests; the tests of light ones run in one environment,
    those of each heavy one in an environment of its own. Without arguments, tests of the default
    suite are left out.
    """
    chosen = manifests.named(arguments)
    light = [package for package in chosen if not package.heavy]
    jobs: dict[str, Callable[[], None]] = {}
    if light:
        jobs["each light plugin alone"] = partial(distributions.smoke_alone, light)
    tested = [p.tests for p in light if p.tests.exists() and (arguments or not p.tested_by_default)]
    if tested:
        jobs["light plugins together"] = partial(suites.run_light, tested, suites.NOT_HEAVY)
    every(
        jobs | {p.label: partial(suites.run_heavy, p) for p in chosen if p.heavy},
        side_by_side=[p.label for p in chosen if p.heavy and not p.exclusive],
    )


def heavy(arguments: Sequence[str]) -> None:
    """Run what needs vLLM, torch, agent frameworks or a browser, each in its own environment."""
    examples = suites.examples_with_environments()
    names = [name for name in arguments if name not in examples]
    chosen = manifests.named(names) if names or not arguments else []
    without = [package.label for package in chosen if not suites.has_heavy_tests(package)]
    if names and without:
        raise SystemExit(
            f"{without[0]} has no heavy tests; all its own: dev.py plugins {without[0]}"
        )
    chosen = [package for package in chosen if package.label not in without]
    jobs = {
        name: partial(suites.run_example, name)
        for name in examples
        if not arguments or name in arguments
    }
    every(
        # The longest jobs are among the packages; they start first.
        {package.label: partial(suites.run_in_earnest, package) for package in chosen} | jobs,
        side_by_side=[*jobs, *(package.label for package in chosen if not package.exclusive)],
    )


def gpu(arguments: Sequence[str]) -> None:
    """Run the tests that measure a GPU, and print what they measured."""
    suites.gpu(arguments)


# What runs with the oldest versions: the rooms that lean on libraries most, without the slow parts.
LOWEST_TESTS = (
    *("tests/core/emitter", "tests/core/genai", "tests/core/otel", "tests/plugins/agl_adapters"),
    *("tests/core/plugins", "tests/core/store", "tests/core/tracer", "tests/core/types"),
    *("tests/plugins/agl_serving", "tests/plugins/agl_store_http/server"),
)


def lowest(arguments: Sequence[str]) -> None:
    """Run tests of what users install with the lowest version of each requirement."""
    installed = manifests.with_requirements([manifests.FOR_USERS])
    required = chain(*(package.dependencies for package in (manifests.core(), *installed)))
    oldest = sorted({line.replace(">=", "==") for line in required if "agl-" not in line})
    tested = manifests.with_requirements([*DEMO_PACKAGES, "agl_testing"])
    # Later releases of openai pass pydantic 2.10 a value that it does not take.
    tools = ("anthropic>=0.40", "numpy>=1.26", "openai>=1.60,<2.9", *distributions.TEST_TOOLS)
    python = editable(ENVS / "lowest", "demo", tested, *oldest, *tools)
    environments.uv("pip", "check", "--quiet", "--python", python)
    # Old releases warn about this Python in ways that newer ones have mended.
    warnings = ("-W", "default::DeprecationWarning")
    suites.pytest(suites.pytest_of(python), *warnings, *(arguments or LOWEST_TESTS))


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


def packages(arguments: Sequence[str]) -> None:
    """Write the lists of packages, docs/settings.md with their options, and docs/runbook.md."""
    del arguments
    package_lists.write()
    run(suites.dev_python(), "-m", "devtools.runbook_page")
    settings([])


def settings(arguments: Sequence[str]) -> None:
    """Write docs/settings.md from the code."""
    run(suites.dev_python(), "-m", "devtools.settings_page", *arguments)


def picture(arguments: Sequence[str]) -> None:
    """Run the demo and draw the picture of the README, and those of the concept pages."""
    del arguments
    diagrams.write()
    demo_picture.write(suites.dev_python())


def llms(arguments: Sequence[str]) -> None:
    """Write llms.txt from the navigation of the site and the pages."""
    del arguments
    llms_page.write()


def performance(arguments: Sequence[str]) -> None:
    """Run benchmarks and write docs/performance.md; ``--runs=N`` says how often each runs."""
    names = tuple(name for name in arguments if not name.startswith("--runs="))
    counts = [int(word.partition("=")[2]) for word in arguments if word.startswith("--runs=")]
    runs = counts[-1] if counts else performance_page.RUNS
    performance_page.write(suites.dev_python(), names or performance_page.BENCHMARKS, runs)


def scale(arguments: Sequence[str]) -> None:
    """Measure what a rollout costs each part of a cluster, and write docs/scale.md."""
    del arguments
    scale_page.write(suites.dev_python())


def ci(arguments: Sequence[str]) -> None:
    """Run what the changes since the last gate can break; see :mod:`devtools.gate`."""
    gate.main(arguments, COMMANDS)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    function.__name__: function
    for function in (
        lint,
        types,
        cover,
        lifecycle,
        slow,
        dist,
        docs,
        lowest,
        plugins,
        heavy,
        gpu,
        demo,
        dashboard,
        test,
        bench,
        mutate,
        proof,
        record,
        packages,
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
