"""The command ``agl plugins trace``."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agl_cli_kit.group import OWN
from agl_cli_kit.output import print_json, print_table
from agl_core.plugins import TRACE_VARIABLE, get_registry


@click.command(
    # What follows the command's name belongs to the command.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: agl plugins trace train train.toml",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the calls as JSON, and what the command prints to stderr.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def trace(as_json: bool, command: tuple[str, ...]) -> int:
    """Run COMMAND and show which hooks of plugins it called, and how long each call took.

    COMMAND is a command of agl with its options, or a program, such as `python script.py`. Calls
    in its child processes are shown, too. The exit code is that of COMMAND.
    """
    import tempfile

    argv = _argv(command)
    with tempfile.TemporaryDirectory(prefix="agl-trace-") as folder:
        file = Path(folder) / "calls.jsonl"
        code = _run(argv, file, output=sys.stderr if as_json else None)
        lines = file.read_bytes().splitlines() if file.exists() else []
    calls = sorted(map(json.loads, lines), key=lambda call: call["time"])
    if as_json:
        print_json(calls)
    elif calls:
        columns = ("at s", "took ms", "process", "hook", "plugins", "error")
        print_table(columns, [_row(call, calls[0]["time"]) for call in calls], title="Hook calls")
    else:
        click.echo("no hook of a plugin was called")
    return code


def _argv(command: Sequence[str]) -> list[str]:
    first, *rest = command
    if first in OWN or any(record.name == first for record in get_registry().of_kind("command")):
        return [sys.executable, "-m", "agl_cli_kit", first, *rest]
    program = shutil.which(first)
    if program is None:
        raise click.UsageError(f"{first!r} is neither a command of agl nor a program")
    return [program, *rest]


def _run(argv: list[str], file: Path, output: Any) -> int:
    """Run a program with tracing, and return its exit code."""
    import subprocess

    sys.stdout.flush()
    environ = {**os.environ, TRACE_VARIABLE: str(file)}
    with subprocess.Popen(argv, env=environ, stdout=output) as process:  # noqa: S603
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                continue  # the program got Ctrl+C as well, and ends in its own way
            return code if code >= 0 else 128 - code


def _row(call: dict[str, Any], start: float) -> list[str]:
    return [
        f"{call['time'] - start:.3f}",
        f"{call['seconds'] * 1000:.3f}",
        str(call["process"]),
        call["hook"],
        ", ".join(call["plugins"]),
        call["error"] or "",
    ]
