"""Writes which test files executed which files or lines; runs where coverage is installed.

Usage: ``python contexts.py FOLDER OUTPUT [--lines]``. The folder holds the data of all processes,
whose contexts are test files. The output is a JSON object: files by context, or with ``--lines``
contexts by line by file.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from coverage import CoverageData
from coverage.exceptions import CoverageException


def measured(folder: Path) -> Iterator[tuple[str, dict[int, list[str]]]]:
    """Yield each measured file with its lines' contexts, once for each process."""
    for path in sorted(folder.glob("data.*")):
        data = CoverageData(str(path))
        try:
            data.read()
        except CoverageException as error:  # a process was killed while it wrote
            print(f"left out {path.name}: {error}", file=sys.stderr)
            continue
        for file in data.measured_files():
            yield file, data.contexts_by_lineno(file)
        data.close()


def files_by_context(folder: Path) -> dict[str, list[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file, lines in measured(folder):
        for context in set().union(*lines.values()) - {""}:
            found[context].add(file)
    return {context: sorted(files) for context, files in found.items()}


def contexts_by_line(folder: Path) -> dict[str, dict[int, list[str]]]:
    found: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file, lines in measured(folder):
        for line, contexts in lines.items():
            found[file][line] |= set(contexts) - {""}
    return {
        file: {line: sorted(contexts) for line, contexts in lines.items() if contexts}
        for file, lines in found.items()
    }


if __name__ == "__main__":
    source, output, *options = sys.argv[1:]
    by = contexts_by_line if "--lines" in options else files_by_context
    Path(output).write_text(json.dumps(by(Path(source))))
