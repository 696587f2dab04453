"""Mutation runs: how many small faults of a component do the conformance suites catch?

    python3 dev.py mutate [COMPONENT...] [--sample N] [--seed N] [--keys TEXT]

A component is one of the ``COMPONENTS`` below. Only its conformance suite may kill a mutant. The
score leaves out the mutants that ``mutation_survivors.toml`` lists as equal in behaviour; each
survivor that is not listed there is printed, and makes the command fail.

Not mutmut or cosmic-ray: the first needs a layout in which it can rewrite the package in place, and
the second starts an interpreter per mutant, which takes longer here than the suites themselves.

Everything runs in a copy of the repository, in forks of one process that has imported the
libraries. A fork runs only the tests that execute the changed line, the fastest first, and stops
at the first failure. A mutant that hangs counts as killed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import pickle
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from devtools.mutants import Mutant, mutants_of
from devtools.process import ROOT

__all__ = ["main"]

SAMPLE = 150
HARMLESS = frozenset({"same", "speed", "text"})
"""Kinds of survivors that do not change behaviour: no difference, only cost, only words."""
TEST_SECONDS = 20
"""A test of the suites takes less than 5 seconds; one that takes longer hangs."""
SURVIVORS = Path(__file__).with_name("mutation_survivors.toml")
FAILED = 1
CORRECT = 0


@dataclass(frozen=True)
class Component:
    """What is mutated, and the only tests that may kill a mutant."""

    files: Sequence[str]
    """Glob patterns, relative to the repository's root."""
    suites: Sequence[str]


COMPONENTS = {
    "store": Component(
        [
            "plugins/agl_store_memory/src/agl_store_memory/*.py",
            "plugins/agl_store_kit/src/agl_store_kit/*.py",
        ],
        ["tests/plugins/agl_store_memory/test_memory_conformance.py::TestMemoryStore"],
    ),
    "tracer": Component(
        [f"agl_core/tracer/_{name}.py" for name in ("base", "active")]
        + [f"plugins/agl_tracer_otel/src/agl_tracer_otel/{name}.py" for name in (
            "exporter", "processor", "recording", "threads", "tracer",
        )],
        ["tests/plugins/agl_tracer_otel/test_otel_conformance.py"],
    ),
    "adapter": Component(
        [f"plugins/agl_adapters/src/agl_adapters/{name}.py" for name in (
            "messages", "model_call", "proxy_triplet", "repair", "rewards", "tree", "triplet",
        )]
        + [f"agl_core/adapter/_{name}.py" for name in ("base", "report")],
        ["tests/plugins/agl_adapters/test_adapter_conformance.py"],
    ),
    "execution": Component(
        ["plugins/agl_exec_shm/src/agl_exec_shm/strategy.py"]
        + [f"agl_core/execution/_{name}.py" for name in ("supervise", "events", "claims", "base")],
        ["tests/plugins/agl_exec_shm/test_shm_conformance.py::TestSharedMemory"],
    ),
    "proxy": Component(
        [f"plugins/agl_proxy_direct/src/agl_proxy_direct/{name}.py" for name in (
            "app", "backends", "call_span", "control", "errors", "exchange", "extra_fields",
            "http_upstream", "model_call", "models_endpoint", "passthrough", "proxy", "relay",
            "spool", "upstream",
        )],
        ["tests/plugins/agl_proxy_direct/test_proxy_conformance.py"],
    ),
}  # fmt: skip


def main(arguments: Sequence[str] = ()) -> None:
    """Mutate components and print scores and survivors; exits 1 if a survivor is not listed."""
    parser = argparse.ArgumentParser(prog="dev.py mutate")
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=", ".join(COMPONENTS))
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants per component")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--keys", default="", help="only mutants whose description has this text")
    parser.add_argument("--verbose", action="store_true", help="print what killed each mutant")
    given = parser.parse_args(arguments)
    if not hasattr(os, "pidfd_open"):
        parser.error("a mutant's process is watched with pidfd_open, which only Linux has")
    unknown = set(given.components) - set(COMPONENTS)
    if unknown:
        parser.error(
            f"no component {', '.join(sorted(unknown))}; there are {', '.join(COMPONENTS)}"
        )
    os.nice(15)
    unlisted = 0
    with tempfile.TemporaryDirectory(prefix="agl-mutation-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for name in given.components or COMPONENTS:
            run = Run(name, tree)
            unlisted += run.all(given.sample, given.seed, given.keys, verbose=given.verbose)
    sys.exit(1 if unlisted else 0)


def copy_tree(tree: Path) -> None:
    """Copy the repository, and import from the copy in this process and its children."""
    for name in ("agl_core", "plugins", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "node_modules", "*.egg-info", "dist")
        shutil.copytree(ROOT / name, tree / name, ignore=ignore, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tree)
    paths = [str(tree), *map(str, sorted(tree.glob("plugins/*/src")))]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant must not leave its code in a cache
    sys.dont_write_bytecode = True
    os.chdir(tree)


@dataclass(frozen=True)
class Listed:
    """An entry of the list of survivors.

    Attributes:
        mutant: The mutant's key; with a ``*`` at the end, the start of several.
        kind: ``same``, ``speed`` or ``text`` if it does not change behaviour; ``outside`` if it is
            not in the contract (an option of this component, code for other callers), so that it is
            not even tried; ``hole`` if a test could catch it and none does.
        reason: Why it survives.
    """

    mutant: str
    kind: str
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        if self.mutant.endswith("*"):
            return mutant.key.startswith(self.mutant[:-1])
        return mutant.key == self.mutant


# -- one component ---------------------------------------------------------------------------------


@dataclass
class Baseline:
    """The suite's tests, durations and lines without a fault."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Duration of each test."""
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict[str, dict[int, list[str]]])
    """Tests that execute each line, by file."""
    modules: list[str] = field(default_factory=list[str])
    """Modules of other projects that the run imported."""


class Run:
    """The mutation run of one component."""

    def __init__(self, name: str, tree: Path) -> None:
        self.name = name
        self.tree = tree
        self.component = COMPONENTS[name]
        self.listed = [
            Listed(**item) for item in tomllib.loads(SURVIVORS.read_text()).get(name, [])
        ]

    def kind(self, mutant: Mutant) -> str | None:
        """Return what kind of survivor the list says that a mutant is."""
        return next((item.kind for item in self.listed if item.matches(mutant)), None)

    def files(self) -> list[str]:
        found: list[str] = []
        for pattern in self.component.files:
            matches = sorted(self.tree.glob(pattern))
            if not matches:
                sys.exit(f"{self.name}: no file matches {pattern}")
            found += [str(path.relative_to(self.tree)) for path in matches]
        return list(dict.fromkeys(found))

    def all(self, sample: int, seed: int, keys: str, *, verbose: bool) -> int:
        """Run the mutants; return the number of survivors that are not listed."""
        start = time.monotonic()
        files = self.files()
        mutants = [m for file in files for m in mutants_of(self.tree, file) if keys in m.key]
        mutants = [m for m in mutants if self.kind(m) != "outside"]
        total = len(mutants)
        # By hash, so that a change of the code replaces only the mutants of that code.
        mutants.sort(key=lambda m: sha256(f"{seed} {m.key}".encode()).digest())
        mutants = mutants[:sample]
        baseline = self.baseline(files)
        preload(baseline.modules)
        killed, survived = 0, list[Mutant]()
        for mutant in mutants:
            killer = self.killer(mutant, baseline)
            if killer is None:
                survived.append(mutant)
            killed += killer is not None
            if verbose:
                print(f"{killer or 'SURVIVED'}  <-  {mutant.key}", flush=True)
        harmless = [m for m in survived if self.kind(m) in HARMLESS]
        unlisted = [m for m in survived if self.kind(m) is None]
        for mutant in unlisted:
            covered = "" if self.tests_of(mutant, baseline) else "  (no test runs it)"
            print(f"  survived: {mutant.key}  line {mutant.line}{covered}")
        counted = len(mutants) - len(harmless)
        print(
            f"{self.name}: {100 * killed / max(counted, 1):.0f} % ({killed} of {counted}) killed; "
            f"{len(survived) - len(harmless)} survived, {len(unlisted)} of them not listed; "
            f"{len(harmless)} do not change behaviour; "
            f"{len(mutants)} of {total} mutants in {time.monotonic() - start:.0f} s",
            flush=True,
        )
        return len(unlisted)

    def baseline(self, files: Sequence[str]) -> Baseline:
        """Run the suite without a fault, with the lines of each test."""
        answer = self.tree / "baseline.pickle"

        def measure() -> int:
            measured = Measured(self.tree, files)
            code = run_tests(self.component.suites, [measured])
            answer.write_bytes(pickle.dumps(measured.baseline()))
            return code

        code, output = in_fork(measure, seconds=600)
        if code != CORRECT:
            sys.exit(f"{self.name}: the suite fails without a fault\n{output}")
        return pickle.loads(answer.read_bytes())

    def tests_of(self, mutant: Mutant, baseline: Baseline) -> list[str]:
        """Return the tests that execute the changed line, the fastest first."""
        lines = baseline.lines.get(mutant.file, {})
        tests = {test for at in range(mutant.line, mutant.end + 1) for test in lines.get(at, ())}
        if mutant.at_import or "" in tests:
            tests = set(baseline.seconds)
        return sorted(tests & set(baseline.seconds), key=baseline.seconds.__getitem__)

    def killer(self, mutant: Mutant, baseline: Baseline) -> str | None:
        """Return what kills a mutant: a test, or ``timeout``; None if it survives."""
        tests = self.tests_of(mutant, baseline)
        if not tests:
            return None
        file = self.tree / mutant.file
        correct = file.read_bytes()
        file.write_text(mutant.source)
        try:
            seconds = 4 * sum(map(baseline.seconds.__getitem__, tests)) + 2 * TEST_SECONDS

            def work() -> int:
                return run_tests(self.component.suites, [Chosen(tests)])

            code, output = in_fork(work, seconds=seconds)
        finally:
            file.write_bytes(correct)
        if code == CORRECT:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) \S+?::(\S+)", output, re.MULTILINE)
        name = failed[1] if failed else ""
        return name or ("timeout" if code is None else f"exit code {code}")


# -- tests in a fork -------------------------------------------------------------------------------


class Chosen:
    """A plugin of pytest that runs these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order),
            key=lambda item: self.order[item.nodeid],
        )


class Measured:
    """A plugin of pytest that records the lines and the duration of each test."""

    def __init__(self, tree: Path, files: Sequence[str]) -> None:
        import coverage

        self.files = {str((tree / file).resolve()): file for file in files}
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, include=list(self.files)
        )
        self.seconds: dict[str, float] = {}
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def baseline(self) -> Baseline:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {
            name: data.contexts_by_lineno(file)
            for file, name in self.files.items()
            if file in data.measured_files()
        }
        own = ("agl_", "tests", "conftest", "test_", "devtools", "_pytest_", "__")
        modules = [
            name
            for name, module in sys.modules.items()
            if not name.startswith(own) and getattr(module, "__spec__", None) is not None
        ]
        return Baseline(self.seconds, lines, modules)


def run_tests(suites: Sequence[str], plugins: Sequence[Any]) -> int:
    import pytest

    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}"]
    options += ["--tb=no", "--show-capture=no"]
    # Mutants that only cost more do not count, and a busy machine must not kill others.
    options += ["-k", "not test_its_cost_is_linear"]
    # Libraries are imported before pytest can rewrite them, and no test needs them rewritten.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *suites], plugins=list(plugins)))


def preload(modules: Sequence[str]) -> None:
    """Import libraries once, for all forks."""
    for name in modules:
        # Some modules can only be imported by their package, or not twice.
        with suppress(Exception):
            importlib.import_module(name)
    gc.freeze()


def in_fork(work: Callable[[], int], *, seconds: float) -> tuple[int | None, str]:
    """Run ``work`` in a fork of this process.

    Returns:
        Its result, or None if it took longer than ``seconds``; and what it printed.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            code = 70
            try:
                os.setsid()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                code = work()
                sys.stdout.flush()
            finally:
                os._exit(code)
        with watched(child) as ended:
            finished = bool(ended.poll(seconds * 1000))
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # the child, if it hangs, and what it left running
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return (os.waitstatus_to_exitcode(status) if finished else None), text


@contextmanager
def watched(child: int) -> Iterator[select.poll]:
    descriptor = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        yield poll
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
