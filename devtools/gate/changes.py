"""Reads the differences from the last gate's commit, uncommitted ones included, from git."""

from __future__ import annotations

import ast
import copy
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from devtools.process import ROOT

PROJECT = "pyproject.toml"
DESCRIPTIVE = ("default", "note", "uses_undocumented")
"""Keys of a package's ``[tool.agl-dev]`` that change nothing that its tests find."""


@dataclass(frozen=True)
class Changes:
    """The differences from a commit.

    Attributes:
        base: The commit.
        files: Paths of changed, new and deleted files, relative to the root.
        moved: Those of them that are new or deleted.
        reshaped: Python files whose :func:`shape` changed.
        tables: Names of the tables of the root ``pyproject.toml`` that differ: ``tool.ruff``.
        descriptive: Manifests of packages that differ only in what lint, lists and gate read.
        worded: Python files whose :func:`program` is the same. They are not among ``files``, since
            such a change can break no more than lint and types, which every gate checks.
    """

    base: str
    files: tuple[str, ...]
    moved: frozenset[str] = frozenset()
    reshaped: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    descriptive: frozenset[str] = frozenset()
    worded: frozenset[str] = frozenset()


def is_known(commit: str) -> bool:
    """Whether a commit is in this clone."""
    command = ("git", "cat-file", "-e", f"{commit}^{{commit}}")
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def since(commit: str) -> Changes:
    """Return what differs from a commit.

    Args:
        commit: A commit that :func:`is_known`.
    """
    words = git("diff", "-z", "--no-renames", "--name-status", commit).split("\0")
    status = dict(zip(words[1::2], words[::2], strict=False))
    status |= dict.fromkeys(untracked(), "A")
    moved = frozenset(name for name, letter in status.items() if letter in "AD")

    def is_same(file: str, part: Callable[[str], Any]) -> bool:
        return file not in moved and part(git("show", f"{commit}:{file}")) == part(_text(file))

    modules = [file for file in status if file.endswith(".py")]
    worded = frozenset(file for file in modules if is_same(file, program))
    reshaped = frozenset(file for file in modules if not is_same(file, shape)) - worded
    tables: frozenset[str] = frozenset()
    if PROJECT in status:
        before = tomllib.loads(git("show", f"{commit}:{PROJECT}"))
        tables = different_tables(before, tomllib.loads(_text(PROJECT)))
    manifests = {file for file in status if file.startswith("plugins/") and file.endswith(PROJECT)}
    descriptive = frozenset(file for file in manifests if is_same(file, _without_descriptions))
    files = tuple(sorted(status.keys() - worded))
    return Changes(commit, files, moved, reshaped, tables, descriptive, worded)


def tracked() -> list[str]:
    """Return the files of the working tree that git tracks or would track."""
    files = [file for file in git("ls-files", "-z").split("\0") if file]
    return [file for file in files if (ROOT / file).exists()] + untracked()


def untracked() -> list[str]:
    names = git("ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return [name for name in names if name]


def git(*arguments: str) -> str:
    """Return what a command of git prints; its warnings are not a part of it."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()


def _text(file: str) -> str:
    return (ROOT / file).read_text()


def shape(source: str) -> str:
    """Return the part of a module that runs at import: all but the bodies of functions.

    Comments are left out, too. The shape of a file with a syntax error is its text.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    return ast.dump(tree)


def program(source: str) -> str:
    """Return a module without comments and without the descriptions of its constants.

    A description is a string below a constant. Other docstrings count: commands print them. The
    program of a file with a syntax error is its text.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    before = [None, *tree.body]
    tree.body = [
        node
        for node, above in zip(tree.body, before, strict=False)
        if not (_is_text(node) and isinstance(above, ast.Assign | ast.AnnAssign))
    ]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def different_tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the top-level tables, and of the tables of tools, that differ."""
    old, new = _named(before), _named(after)
    return frozenset(name for name in old | new if old.get(name) != new.get(name))


def _without_descriptions(manifest: str) -> dict[str, Any]:
    """Return what a package's ``pyproject.toml`` says to others than lint, lists and gate."""
    project = tomllib.loads(manifest)
    tool = {name: table for name, table in project.get("tool", {}).items() if name != "ruff"}
    settings = tool.pop("agl-dev", {})
    tool["agl-dev"] = {key: value for key, value in settings.items() if key not in DESCRIPTIVE}
    return {**project, "tool": tool}


def _named(project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables by name; what the tests are and how marks are described is left out."""
    project = copy.deepcopy(dict(project))
    options = project.get("tool", {}).get("pytest", {}).get("ini_options", {})
    for harmless in ("testpaths", "markers"):
        options.pop(harmless, None)
    top = {name: table for name, table in project.items() if name != "tool"}
    return top | {f"tool.{name}": table for name, table in project.get("tool", {}).items()}
