"""Writes which files each test file executed; runs where coverage is installed.

Usage: ``python contexts.py FOLDER OUTPUT``. The folder holds the data of all processes, whose
contexts are test files. The output is a JSON object: files by context.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

from coverage import CoverageData
from coverage.exceptions import CoverageException


def files_by_context(folder: Path) -> dict[str, list[str]]:
    """Return the measured files that each context executed, of all processes."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.glob("data.*")):
        data = CoverageData(str(path))
        try:
            data.read()
        except CoverageException as error:  # a process was killed while it wrote
            print(f"left out {path.name}: {error}", file=sys.stderr)
            continue
        for file in data.measured_files():
            for context in set().union(*data.contexts_by_lineno(file).values()) - {""}:
                found[context].add(file)
        data.close()
    return {context: sorted(files) for context, files in found.items()}


if __name__ == "__main__":
    source, output = sys.argv[1:]
    Path(output).write_text(json.dumps(files_by_context(Path(source))))
