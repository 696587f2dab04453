"""Proves the choice of tests: of the mutants that any test kills, how many do the chosen ones kill?

    python3 dev.py proof [PART...] [--sample N] [--seed N]

Needs the data of a run of ``python3 dev.py record`` or ``cover``, which say what test files execute
a line. A mutant is changed in a copy of the repository. The tests of a gate come first: the chosen
unmarked tests that execute the line, and the slow tests of the changed part. If they pass, the
others run: those that the choice left out, and slow tests of all other files that use the changed
one. A mutant that only these kill is a miss.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from devtools import packages, suites
from devtools.environments import ENVS
from devtools.gate import changes, recording, test_map
from devtools.gate.parts import Part, Tree
from devtools.gate.selection import Context, choose
from devtools.mutants import Mutant, mutants_of
from devtools.process import ROOT, say

PARTS = ("agl_core", "agl_store_http", "agl_proxy_direct", "agl_algo_grpo", "agl_testing")
SAMPLE = 12
HANGS = 1200
"""Seconds after which the tests of a mutant hang; no file takes half of it."""
GROUP = re.compile(r"@\w+$")
"""The end that pytest-xdist adds to the id of a test that shares a process with others."""


@contextmanager
def written(sources: Mapping[Path, str]) -> Iterator[None]:
    """Replace the content of files while the context is open."""
    before = {path: path.read_bytes() for path in sources}
    try:
        for path, source in sources.items():
            path.write_text(source)
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


@dataclass(frozen=True)
class Copy:
    """A copy of the repository in which mutants are made.

    Attributes:
        root: Its folder.
        tree: The files of the repository.
        tests: The recorded run.
        broken: Tests that fail there without a fault, and are left out.
    """

    root: Path
    tree: Tree
    tests: test_map.TestMap
    broken: set[str]

    def chosen(self, mutant: Mutant) -> set[str]:
        """Return the test files that a gate of this change chooses."""
        change = changes.Changes("", (mutant.file,), reshaped=self._reshaped(mutant))
        return set(choose(Context(self.tree, self.tests, change)))

    def _reshaped(self, mutant: Mutant) -> frozenset[str]:
        same = changes.shape(mutant.source) == changes.shape(self.tree.text(mutant.file))
        return frozenset() if same else frozenset({mutant.file})

    def killer(self, files: Iterable[str], marks: str) -> str | None:
        """Return the first test of some files that fails; None if all pass."""
        for part, tests in self._by_environment(files):
            if failed := self._failed(part, tests, marks, "-x") - self.broken:
                return min(failed)
        return None

    def slow_killer(self, files: Iterable[str], mutant: Mutant) -> str | None:
        """Return the first slow test that fails with a mutant and not without it."""
        files = list(files)
        while killer := self.killer(files, suites.SLOW):
            file = killer.partition("::")[0]
            if file not in self.tree.test_files:  # no test, but the run
                return killer
            ((part, _),) = self._by_environment([file])
            with written({self.root / mutant.file: ast.unparse(mutant.tree)}):
                failed = self._failed(part, [killer], suites.SLOW)
            if not failed:
                return killer
            self.broken.add(killer)
        return None

    def find_broken(self, files: Iterable[str], mutants: Iterable[Mutant]) -> None:
        """Note the unmarked tests that fail in this copy without a fault.

        A mutant is written without comments and formatting, as each of their files is here: a test
        that lints the copy would kill all of them.
        """
        with written({self.root / mutant.file: ast.unparse(mutant.tree) for mutant in mutants}):
            for part, tests in self._by_environment(files):
                self.broken.update(self._failed(part, tests, suites.UNMARKED))

    def _by_environment(self, files: Iterable[str]) -> Sequence[tuple[Part | None, Sequence[str]]]:
        """Return test files by the heavy part whose environment they need; None: the common one."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for file in sorted(files):
            part = self.tree.test_files[file]
            found[part.name if part.heavy else ""].append(file)
        return [(self.tree.parts.get(name), tests) for name, tests in found.items()]

    def _failed(
        self, part: Part | None, files: Sequence[str], marks: str, *options: str
    ) -> set[str]:
        """Run tests; return those that failed, or what ended the run instead."""
        python = suites.dev_python() if part is None else ENVS / part.name / "bin/python"
        parallel = part is None or part.package is None or part.package.parallel
        processes = str(suites.WORKERS) if parallel else "0"
        sources = [self.root, *sorted(self.root.glob("plugins/*/src"))]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "PYTHONDONTWRITEBYTECODE": "1",  # a mutant must not leave its code in a cache
        }
        command = [python, "-m", "pytest", "-q", "-n", processes, "--dist", "loadgroup"]
        command += ["--tb=no", "--show-capture=no", "-m", marks, *options]
        command += [*(f"--deselect={test}" for test in sorted(self.broken)), *files]
        with tempfile.TemporaryDirectory() as cache:
            command += ["-o", f"cache_dir={cache}"]
            with subprocess.Popen(
                command, cwd=self.root, env=env, start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ) as process:  # fmt: skip
                try:
                    code = process.wait(timeout=HANGS)
                except subprocess.TimeoutExpired:
                    return {"a test that hangs"}
                finally:
                    with suppress(ProcessLookupError):  # kills what a killed test left, too
                        os.killpg(process.pid, signal.SIGKILL)
            last_failed = Path(cache, "v/cache/lastfailed")
            names = json.loads(last_failed.read_text()) if last_failed.exists() else ()
        if code not in (0, suites.NOTHING_COLLECTED) and not names:
            return {f"a run of pytest that ended with {code}"}
        return {GROUP.sub("", name) for name in names}


def main(arguments: Sequence[str] = ()) -> None:
    """Print what kills each mutant, and the share that the chosen tests kill."""
    parser = argparse.ArgumentParser(prog="dev.py proof", description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants of a part")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    say(f"seed {given.seed}, {given.sample} mutants each of {', '.join(given.parts)}")
    executed = _executed()
    with tempfile.TemporaryDirectory(prefix="agl-proof-") as folder:
        copy = Copy(_cloned(Path(folder)), Tree(ROOT, changes.tracked()), test_map.read(), set())
        parts = [copy.tree.parts[name] for name in given.parts]
        drawn = [(p, m) for p in parts for m in _sample(p, executed, given.sample, given.seed)]
        mutants = [mutant for _, mutant in drawn]
        copy.find_broken(_tests_of(mutants, executed), mutants)
        killed = missed = 0
        for part, mutant in drawn:
            start = time.monotonic()
            by_chosen, by_others = _killers(copy, part, mutant, executed)
            killed += by_chosen is not None
            missed += by_others is not None
            found = by_chosen or (f"MISSED, killed by {by_others}" if by_others else "survives")
            took = time.monotonic() - start
            say(f"{took:5.0f} s  {mutant.key} line {mutant.line}: {found}")
    say(f"the chosen tests kill {killed} of {killed + missed} mutants that any test kills")
    if missed > 0.05 * (killed + missed):
        sys.exit("more than 5 % are missed")


Executed = Mapping[str, Mapping[int, set[str]]]
"""Test files that execute each line, by file."""


def _executed() -> Executed:
    """Return what the unmarked tests of the last recording executed."""
    from coverage import CoverageData

    found: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted(recording.FOLDER.glob("*/unmarked/data*")):
        data = CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            lines = found[recording.in_repository(file)]
            for line, contexts in data.contexts_by_lineno(file).items():
                lines[line].update(set(contexts) - {""})
        data.close()
    if not found:
        sys.exit("there are no data of a recording; run `python3 dev.py record`")
    return found


def _cloned(folder: Path) -> Path:
    """Clone the repository; some tests ask git for its files."""
    if changes.git("status", "--porcelain"):
        sys.exit("the working tree differs from its commit: commit first")
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
    (folder / ".envs").symlink_to(ENVS)
    return folder


def _sample(part: Part, executed: Executed, size: int, seed: int) -> list[Mutant]:
    """Return mutants of executed lines, drawn by hash: other code does not change the draw."""
    source = "agl_core/" if part.package == packages.core() else f"plugins/{part.name}/src/"
    files = [file for file in executed if file.startswith(source) and (ROOT / file).exists()]
    mutants = [m for file in sorted(files) for m in mutants_of(ROOT, file)]
    mutants = [m for m in mutants if _tests_of([m], executed)]
    mutants.sort(key=lambda m: sha256(f"{seed} {m.key}".encode()).digest())
    return mutants[:size]


def _tests_of(mutants: Iterable[Mutant], executed: Executed) -> set[str]:
    """Return the test files that execute the changed lines.

    What runs at import runs once a process, in whichever test file imports first.
    """
    found: set[str] = set()
    for mutant in mutants:
        lines = executed[mutant.file]
        changed = lines if mutant.at_import else range(mutant.line, mutant.end + 1)
        found.update(*(lines.get(line, ()) for line in changed))
    return found


def _killers(
    copy: Copy, part: Part, mutant: Mutant, executed: Executed
) -> tuple[str | None, str | None]:
    """Return the test of a gate that kills a mutant of a part, or else another test that does."""
    known = copy.tree.test_files.keys()
    executing = _tests_of([mutant], executed) & known
    chosen = executing & copy.chosen(mutant)
    # Most are killed by a test of their own part, which is found sooner without all others.
    near = {test for test in chosen if copy.tree.test_files[test] == part}
    slow = {test for test in copy.tests.users_of(mutant.file) & known if copy.tree.is_slow(test)}
    own = {test for test in slow if copy.tree.test_files[test] == part}
    with written({copy.root / mutant.file: mutant.source}):
        killer = copy.killer(near, suites.UNMARKED) or copy.killer(chosen - near, suites.UNMARKED)
        if killer := killer or copy.slow_killer(own, mutant):
            return killer, None
        others = copy.killer(executing - chosen, suites.UNMARKED)
        return None, others or copy.slow_killer(slow - own, mutant)


if __name__ == "__main__":
    main(sys.argv[1:])
