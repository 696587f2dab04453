"""``agl replay --check``: names what makes an agent irreproducible, with the file and the line."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import AglError
from agl_core.genai import dumps, loads

__all__ = ["check_agent", "set_iterations"]

_HASH_SEEDS: Final = ("1", "2")
_REMEDIES: Final = {
    "time": "agl.now()",
    "random": "agl.random()",
    "set": "sorted(...)",
    "hash": "a stable key",
    "file": "@agl.operation(record=True)",
    "socket": "@agl.operation(record=True)",
    "process": "@agl.operation(record=True)",
}
_SETS: Final = frozenset({"set", "frozenset"})
_ORDERED: Final = frozenset({"list", "tuple", "enumerate", "iter", "map", "join", "str", "repr"})


class CheckError(AglError, RuntimeError):
    """A run of the agent could not be observed."""


def check_agent(arguments: Mapping[str, Any], as_json: bool) -> int:
    """Run an agent twice from a recording, print what it reads from outside, return an exit code.

    The two runs are processes with different orders of sets (``PYTHONHASHSEED``).

    Args:
        arguments: As for :func:`agl_replay.observation.main`.
        as_json: Whether to print JSON.

    Returns:
        0 if both runs repeat the recording, otherwise 1.

    Raises:
        CheckError: A run failed before the agent started.
    """
    runs = [_run(arguments, seed) for seed in _HASH_SEEDS]
    reads = _merged(runs)
    changed = [str(run["changed_at"]) for run in runs]
    if changed[0] != changed[1] or any(run["divergence"] for run in runs):
        reads += [
            {"kind": "set", "what": "order of a set", "file": file, "line": line, "calls": None}
            for file in _files(runs)
            for line in set_iterations(Path(file).read_text(encoding="utf-8"))
        ]
    same = not any(changed)
    if as_json:
        print_json({"same": same, "changed_at": [one or None for one in changed], "reads": reads})
    else:
        _print(changed, reads)
    return 0 if same else 1


def _run(arguments: Mapping[str, Any], seed: str) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "agl_replay.observation", dumps(arguments).decode()],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CheckError(f"the agent could not be run: {lines[-1]}")
    return loads(done.stdout.splitlines()[-1].encode())


def _merged(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the reads of all runs, each place once, in the order of files and lines."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        for read in run["reads"]:
            key = (read["file"], read["line"], read["kind"], read["what"])
            kept = found.setdefault(key, dict(read))
            kept["calls"] = max(kept["calls"], read["calls"])
    return [found[key] for key in sorted(found)]


def _files(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({file for run in runs for file in run["files"] if Path(file).is_file()})


def set_iterations(source: str) -> list[int]:
    """Return the lines on which Python code depends on the order of a set, by its syntax.

    Found are loops over, and lists and texts of, set displays, calls of ``set``, and names that
    were assigned one.
    """
    tree = ast.parse(source)
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_set(node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return sorted({node.lineno for node in _ordered_uses(tree) if _is_set(node, names)})


def _ordered_uses(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose order shows."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            yield node.iter
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)):
            yield from (generator.iter for generator in node.generators)
        elif isinstance(node, ast.FormattedValue):
            yield node.value
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in _ORDERED or name == "dumps":
                yield from node.args


def _is_set(node: ast.expr, names: set[str] | frozenset[str]) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_set(node.left, names) or _is_set(node.right, names)
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _SETS
    return isinstance(node, (ast.Set, ast.SetComp))


def _print(changed: Sequence[str], reads: Sequence[Mapping[str, Any]]) -> None:
    for number, (seed, where) in enumerate(zip(_HASH_SEEDS, changed, strict=True), 1):
        said = f"differs at {where}" if where else "as recorded"
        click.echo(f"run {number} (PYTHONHASHSEED={seed}): {said}")
    if reads:
        rows = [
            [
                str(read["what"]),
                f"{_short(read['file'])}:{read['line']}",
                "" if read["calls"] is None else str(read["calls"]),
                _REMEDIES[read["kind"]],
            ]
            for read in reads
        ]
        print_table(("reads", "where", "calls", "instead"), rows)
    if not any(changed):
        had = "what the agent reads from outside changed none of its calls" if reads else ""
        click.echo(f"reproducible{': ' + had if had else ''}")


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
