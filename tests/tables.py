"""Checks all entries of a table in one test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def check_each(check: Callable[..., object], table: Iterable[Any]) -> None:
    """Check each entry; a failure names every wrong one, with its error.

    For a table of names, whose checks are shorter than the set-up of one test each.

    Args:
        check: Called with an entry, or with the parts of one that is a tuple; raises if it is
            wrong.
        table: The entries; without any, nothing would be checked, which is a failure.
    """
    entries = list(table)
    assert entries, "the table is empty"
    wrong: list[str] = []
    for entry in entries:
        try:
            check(*(entry if isinstance(entry, tuple) else (entry,)))
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{entry!r}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(entries)} are wrong:", *wrong])
