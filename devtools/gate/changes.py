"""What differs from the last commit that a gate passed, uncommitted changes included."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devtools.process import ROOT, output_of

PROJECT = "pyproject.toml"


@dataclass(frozen=True)
class Changes:
    """The differences from a commit.

    Attributes:
        base: The commit.
        files: Paths of changed, new and deleted files, relative to the root.
        moved: Those of them that are new or deleted.
        tables: Names of the tables of the root ``pyproject.toml`` that differ: ``tool.ruff``.
    """

    base: str
    files: tuple[str, ...]
    moved: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()


def is_known(commit: str) -> bool:
    """Whether a commit is in this clone and is an ancestor of the current one."""
    command = ("git", "merge-base", "--is-ancestor", commit, "HEAD")
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def since(commit: str) -> Changes:
    """Return what differs from a commit.

    Args:
        commit: A commit that :func:`is_known`.
    """
    lines = output_of("git", "diff", "--no-renames", "--name-status", commit).splitlines()
    status = {name: letter for letter, _, name in (line.partition("\t") for line in lines)}
    status |= dict.fromkeys(untracked(), "A")
    moved = frozenset(name for name, letter in status.items() if letter in "AD")
    tables: frozenset[str] = frozenset()
    if PROJECT in status:
        before = tomllib.loads(output_of("git", "show", f"{commit}:{PROJECT}"))
        tables = different_tables(before, tomllib.loads((ROOT / PROJECT).read_text()))
    return Changes(commit, tuple(sorted(status)), moved, tables)


def tracked() -> list[str]:
    """Return the files of the working tree that git tracks or would track."""
    return [f for f in output_of("git", "ls-files").splitlines() if (ROOT / f).exists()] + [
        *untracked()
    ]


def untracked() -> list[str]:
    return output_of("git", "ls-files", "--others", "--exclude-standard").splitlines()


def different_tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the top-level tables, and of the tables of tools, that differ."""
    return frozenset(
        name
        for name in _named(before) | _named(after)
        if _named(before).get(name) != _named(after).get(name)
    )


def _named(project: Mapping[str, Any]) -> dict[str, Any]:
    top = {name: table for name, table in project.items() if name != "tool"}
    return top | {f"tool.{name}": table for name, table in project.get("tool", {}).items()}
