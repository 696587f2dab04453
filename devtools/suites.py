"""Runs tests: in which environment, with which marks, in how many processes.

The default suite runs in the development environment. On wheels, the tests of light packages share
one environment. Those of each heavy package, and of an example that names requirements in
``tests/envs/examples``, run in an environment of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from devtools import debian, distributions, packages, rescued
from devtools.environments import ENVS, editable, environment
from devtools.packages import Package
from devtools.process import CORES, ROOT, exit_code, once, run

# Tests wait for sockets and processes about half of their time.
WORKERS = 2 * CORES
NOTHING_COLLECTED = 5
VLLM_PYTHON = "AGL_TEST_VLLM_PYTHON"
MUST_INSTALL = "AGL_TEST_MUST_INSTALL"
"""Environment variable: an example whose programs cannot be installed fails instead of skipping."""
GPU_TESTS = "agl_algo_grpo"
"""The package among whose tests are those marked ``gpu``."""
GPU_ON_CPU = "AGL_TEST_GPU"
"""Environment variable: ``cpu`` tries those tests where there is no GPU."""
GPU_SECONDS = 240
"""Limit of all tests on a GPU together: such a machine is often lent for minutes only."""
UNMARKED = "not slow and not benchmark and not heavy"
SLOW = "slow and not benchmark and not heavy"
NOT_HEAVY = "not benchmark and not heavy"
HEAVY = "heavy"
SLOWEST = ("--durations", "15", "--durations-min", "5")
"""What shows which tests a gate's time goes to."""


@once
def dev_python() -> Path:
    """Return the Python of the development environment.

    It has editable installs of the core and of every light plugin, with what their tests need.
    """
    return editable(ROOT / ".venv", "dev", packages.light_plugins(), tested=True)


# -- pytest ----------------------------------------------------------------------------------------


def pytest(
    command: Sequence[str | Path],
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    may_be_empty: bool = False,
) -> None:
    """Run tests in several processes, then those marked ``timing`` one at a time.

    Args:
        command: The command that runs pytest: a Python, its options and ``-m pytest``.
        arguments: Arguments to pytest; they may replace the number of processes.
        env: What to add to the environment.
        may_be_empty: Whether it is right that no test is collected.
    """
    # A run that goes on after the crash of a worker can wait for it for ever.
    crashes = ("--max-worker-restart", "0")
    spread = ("-n", str(WORKERS), "--dist", "loadgroup", *crashes, "--timing", "skip", *SLOWEST)
    codes = {
        exit_code(*command, *spread, *arguments, env=env),
        exit_code(*command, *arguments, "-n0", "--timing", "only", env=env),
    }
    if may_be_empty or codes != {NOTHING_COLLECTED}:
        codes -= {NOTHING_COLLECTED}
    failed = sorted(filter(None, codes))
    if failed:
        sys.exit(failed[0])  # negative for a signal


def pytest_of(python: Path) -> list[str | Path]:
    return [python, "-m", "pytest", *second_try()]


def installed(python: Path) -> list[str | Path]:
    """Return what runs pytest on installed packages: -P keeps the working tree off the path."""
    return [python, "-P", "-m", "pytest", *second_try()]


def second_try() -> list[str]:
    """Return what makes CI, whose machine has other guests, run a failed test once more.

    The summary names the tests that needed it, and so does the end of a gate. Each is a fault to
    mend, in the code or the test.
    """
    if not os.environ.get("CI"):
        return []
    return ["-p", rescued.__name__, "--reruns", "1", "-raR"]


def tests_on_path() -> dict[str, str]:
    """Return the variables with which child processes of tests import test modules by name.

    A spawned process imports ``tests.plugins...``. The repository's root must not be on its path,
    since the working tree would hide what is installed; a folder that holds only the tests, and
    the tools that some of them test, may.
    """
    folder = ENVS / "tests-path"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tests", "devtools", "dev.py"):
        link = folder / name
        if not link.exists():
            link.symlink_to(ROOT / name)
    return {"PYTHONPATH": str(folder)}


def default(arguments: Sequence[str | Path] = (), *, may_be_empty: bool = False) -> None:
    """Run the default suite, or what the arguments name: ``python3 dev.py test``.

    It is every test without a mark, but for the packages whose ``[tool.agl-dev]`` says that they
    are left out.

    Args:
        arguments: Test files and folders, which leave out all others, and options of pytest.
        may_be_empty: Whether it is right that no test is collected.
    """
    pytest(pytest_of(dev_python()), *arguments, may_be_empty=may_be_empty)


# -- on wheels -------------------------------------------------------------------------------------


def run_light(
    places: Iterable[str | Path], marks: str, *options: str, env: Mapping[str, str] | None = None
) -> None:
    """Run tests of light packages, or of what uses only them; there may be none with the marks.

    Args:
        places: Test files and folders.
        marks: The expression that chooses tests by their marks.
        options: Further arguments to pytest.
        env: What to add to the environment.
    """
    python = distributions.light_together()
    variables = tests_on_path() | {**(env or {})}
    pytest(installed(python), "-m", marks, *options, *places, env=variables, may_be_empty=True)


def run_heavy(
    package: Package, places: Sequence[str | Path] = (), *, marks: str = NOT_HEAVY
) -> None:
    """Run tests of a heavy package that do not need real engines or real frameworks.

    Args:
        package: The package.
        places: Test files and folders; by default all its tests.
        marks: Which tests, as an expression of marks.
    """
    python = distributions.alone(package)
    # Jobs that run side by side share the processes.
    workers = WORKERS if package.exclusive else WORKERS // CORES
    processes = ("-n", str(workers) if package.parallel else "0")
    command = (*installed(python), "-m", marks, *processes)
    pytest(command, *(places or [package.tests]), env=tests_on_path(), may_be_empty=bool(places))


def run_in_earnest(package: Package) -> None:
    """Run the tests of a package that are marked ``heavy``: vLLM, torch, frameworks, a browser."""
    if mentioned_in_tests(package, "chromium"):
        debian.install("chromium")
    env = tests_on_path()
    if mentioned_in_tests(package, VLLM_PYTHON):
        env[VLLM_PYTHON] = str(vllm_python())
    python = distributions.alone(package, fresh=False)
    run(*installed(python), package.tests, "-m", HEAVY, env=env)


def gpu(arguments: Sequence[str]) -> None:
    """Run the tests marked ``gpu``; they skip without a GPU, and end with a table.

    Args:
        arguments: ``--python``, ``--cpu``, and options of pytest.
    """
    parser = argparse.ArgumentParser(
        prog="python3 dev.py gpu",
        allow_abbrev=False,  # pytest has options of its own
        description=f"Run the tests that measure a GPU, in at most {GPU_SECONDS // 60} minutes "
        "beside the installation, and print a table of their figures and bars. It fails if a test "
        "fails. Other arguments go to pytest.",
        epilog="Example: python3 dev.py gpu -k precision. Without a package index: pip install "
        "--no-index the wheels of the packages and of what they require, then "
        "python3 dev.py gpu --python python3",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="a Python that has agl-algo-grpo with its test extra, and pytest with its plugins; by "
        "default an environment is made",
    )
    parser.add_argument(
        "--cpu", action="store_true", help="without a GPU try the tests on the CPU, in small"
    )
    options, others = parser.parse_known_args(arguments)
    (package,) = packages.named([GPU_TESTS])
    env = {GPU_ON_CPU: "cpu"} if options.cpu else {}
    env |= tests_on_path()
    if options.python is None:
        python = distributions.alone(package, fresh=False)
    elif found := shutil.which(options.python):
        python = Path(found).absolute()  # not resolved: a link is in an environment
        # What is installed with `pip install --target` is found by this variable.
        env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [env["PYTHONPATH"], os.environ.get("PYTHONPATH")])
        )
    else:
        parser.error(f"--python: {options.python} is not a program")
    limit = f"--session-timeout={GPU_SECONDS}"
    run(*installed(python), "-m", "gpu", limit, package.tests / "gpu", *others, env=env)


def run_example(name: str) -> None:
    """Run the heavy tests of an example, in the environment that its requirements make.

    Packages of this repository in that file bring those that they require.
    """
    requirements = ROOT / f"tests/envs/examples/{name}.txt"
    named = re.findall(r"^-e plugins/(\w+)$", requirements.read_text(), re.MULTILINE)
    paths = [package.folder for package in packages.with_requirements(named)]
    arguments = ["-r", requirements, *chain.from_iterable(("-e", path) for path in paths)]
    included = re.findall(r"^-r (\S+)$", requirements.read_text(), re.MULTILINE)
    made_from = [requirements, *(requirements.parent / path for path in included)]
    made_from += [path / "pyproject.toml" for path in paths]
    python = environment(ENVS / name, arguments, made_from)
    tests = f"tests/examples/{name}"
    run(*pytest_of(python), tests, "-m", HEAVY, env={MUST_INSTALL: "yes"})


def examples_with_environments() -> list[str]:
    """Return the names of the examples whose tests need an environment of their own."""
    return sorted(path.stem for path in (ROOT / "tests/envs/examples").glob("*.txt"))


def has_heavy_tests(package: Package) -> bool:
    return mentioned_in_tests(package, "mark.heavy")


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
