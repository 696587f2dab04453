"""The recorded run: what each test file uses of the repository, and how long it takes.

``.ci/test_map.json`` is written by ``python3 dev.py record``. Sets of files are kept as ranges of
indices into one sorted list, since files of a package are mostly used together. Beside each file is
a digest of its text, which tells what has changed since.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devtools.process import ROOT

FILE = ROOT / ".ci/test_map.json"


@dataclass(frozen=True)
class Used:
    """Files that the tests of one file use, and their durations.

    Attributes:
        files: Files of the repository that they execute or read.
        folders: Folders that they list.
        forks: Whether they fork; what runs in a forked child is not recorded.
        seconds: Duration of its tests that are not marked, in seconds.
        slow_seconds: Duration of its tests that are marked ``slow``, in seconds.
    """

    files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    forks: bool = False
    seconds: float = 0.0
    slow_seconds: float = 0.0


@dataclass(frozen=True)
class TestMap:
    """The recorded run.

    Attributes:
        tests: What each test file uses.
        digests: Digests of all recorded files; empty for a file that different test files used in
            different states.
    """

    __test__ = False  # for pytest: the name begins like that of a test class

    tests: Mapping[str, Used] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    def users_of(self, file: str) -> set[str]:
        """Return the test files that use a file."""
        return {test for test, used in self.tests.items() if file in used.files}

    def listers_of(self, file: str) -> set[str]:
        """Return the test files that list the folder of a file."""
        folder = Path(file).parent.as_posix()
        return {test for test, used in self.tests.items() if folder in used.folders}

    def users_below(self, folder: str) -> set[str]:
        """Return the test files that use a file below a folder, whose name ends with a slash."""
        return {
            test
            for test, used in self.tests.items()
            if any(name.startswith(folder) for name in used.files)
        }

    def is_current(self, file: str, text: str) -> bool:
        """Whether a file was recorded, and has the text that it had then."""
        return self.digests.get(file) == digest(text)

    def merged(self, newer: TestMap) -> TestMap:
        """Return this map with the test files of another run in place of their older entries."""
        kept = {test: used for test, used in self.tests.items() if test not in newer.tests}
        digests = {**self.digests, **newer.digests}
        for file in (name for used in kept.values() for name in used.files):
            if self.digests.get(file) != digests.get(file):
                digests[file] = ""
        return TestMap({**kept, **newer.tests}, digests)


def digest(text: str) -> str:
    """Return a digest of a file's text; eight digits tell apart a few thousand files."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def read(path: Path = FILE) -> TestMap:
    """Return the recorded run; an empty one if there is no file.

    Raises:
        SystemExit: The file cannot be read, as after a merge with conflicts.
    """
    if not path.exists():
        return TestMap()
    try:
        data = json.loads(path.read_text())
        names = list(data["files"])
        tests = {test: _used(names, entry) for test, entry in data["tests"].items()}
    except (ValueError, KeyError, AttributeError) as error:
        sys.exit(f"{path}: not a recorded run ({error!r}): restore it with git")
    return TestMap(tests, {name: text for name, text in data["files"].items() if text is not None})


def write(tests: TestMap, path: Path = FILE) -> None:
    """Write a recorded run, one line for each test file."""
    used_names = {f for used in tests.tests.values() for f in (*used.files, *used.folders)}
    names = sorted(used_names | set(tests.tests))
    index = {name: number for number, name in enumerate(names)}
    lines = [
        f"  {json.dumps(test)}: {json.dumps(_entry(index, used))}"
        for test, used in sorted(tests.tests.items())
    ]
    listed = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(tests.digests.get(name))}" for name in names
    )
    body = ",\n".join(lines)
    path.write_text(f'{{"files": {{\n{listed}\n}},\n"tests": {{\n{body}\n}}}}\n')


def _entry(index: Mapping[str, int], used: Used) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "seconds": round(used.seconds, 1),
        "slow": round(used.slow_seconds, 1),
        "forks": used.forks,
        "files": _ranges(index[name] for name in used.files),
        "folders": _ranges(index[name] for name in used.folders),
    }
    return {name: value for name, value in entry.items() if value}


def _used(names: Sequence[str], entry: Mapping[str, Any]) -> Used:
    return Used(
        files=frozenset(names[i] for i in _numbers(entry.get("files", ""))),
        folders=frozenset(names[i] for i in _numbers(entry.get("folders", ""))),
        forks=entry.get("forks", False),
        seconds=entry.get("seconds", 0.0),
        slow_seconds=entry.get("slow", 0.0),
    )


def _ranges(numbers: Iterable[int]) -> str:
    """Write a set of numbers: ``0-5 7 9-12``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return " ".join("-".join(map(str, run)) for run in runs)


def _numbers(text: str) -> Iterable[int]:
    for run in text.split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
