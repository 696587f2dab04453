"""Loads the datasets that a train file names.

========================  ==========================================================================
``["a", "b"]``            the tasks themselves
``"tasks.jsonl"``         a JSON value per line; blank lines are skipped
``"tasks.json"``          a JSON list
``"tasks.csv"``           a table with a header; each row is a task, a dict of texts
``"package.module:name"``  a dataset, or a function that takes nothing and returns one
``"tasks.py:name"``       the same in a file
========================  ==========================================================================
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Final, cast

from agl_core.errors import ConfigError, error_text
from agl_core.trainer import check_dataset
from agl_core.types import Dataset
from agl_train.references import import_reference, is_reference

_SUFFIXES: Final = (".jsonl", ".json", ".csv")


def load_dataset(spec: str | list[Any], directory: Path, *, path: str) -> Dataset[Any]:
    """Return the dataset that ``spec`` names.

    Args:
        spec: See above.
        directory: Base of relative paths.
        path: Key of ``spec`` in the train file, for messages.

    Raises:
        ConfigError: ``spec`` names no dataset, the file is malformed (with the line), or contains
            no task.
    """
    if isinstance(spec, list):
        dataset: object = spec
    elif is_reference(spec):
        dataset = import_reference(spec, directory, path=path)
        # A dataset's class has the same methods but is not a dataset.
        if isinstance(dataset, type) or not isinstance(dataset, Dataset):
            dataset = _call(dataset, spec, path) if callable(dataset) else dataset
    else:
        dataset = _read(spec, directory, path)
    checked = check_dataset(path, dataset)
    if checked is None:
        raise ConfigError(f"{spec} is None, not a dataset", path=path)
    if len(checked) == 0:
        raise ConfigError(f"{'the list' if isinstance(spec, list) else spec} is empty", path=path)
    return checked


def _call(function: Any, spec: str, path: str) -> object:
    try:
        return function()
    except Exception as error:
        raise ConfigError(f"{spec} raised {error_text(error)}", path=path) from error


def _read(spec: str, directory: Path, path: str) -> list[Any]:
    file = directory / spec
    suffix = file.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ConfigError(
            f"{spec!r} is not a dataset: give a list, a file ({', '.join(_SUFFIXES)}) or "
            "'package.module:name'",
            path=path,
        )
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{file} cannot be read: {reason}", path=path) from error
    try:
        if suffix == ".jsonl":
            return _jsonl(text)
        if suffix == ".csv":
            return _csv(text)
        data: object = json.loads(text)
    except (ValueError, csv.Error, RecursionError) as error:
        raise ConfigError(f"{file}: {error}", path=path) from error
    if not isinstance(data, list):
        raise ConfigError(f"{file} contains a {type(data).__name__}, not a list", path=path)
    return cast("list[Any]", data)


def _jsonl(text: str) -> list[Any]:
    # Not splitlines(), which also splits at characters that JSON and CSV allow in a text.
    tasks: list[Any] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            tasks.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON: {error.msg}") from error
    return tasks


def _csv(text: str) -> list[Any]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    tasks: list[Any] = []
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"line {reader.line_num} has not as many cells as the header")
        tasks.append(row)
    return tasks
