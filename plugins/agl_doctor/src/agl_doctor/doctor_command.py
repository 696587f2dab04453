"""The command ``agl doctor``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from agl_cli_kit import in_terminal, open_store, print_json

if TYPE_CHECKING:
    from agl_core.doctor import Finding
    from agl_core.store import LightningStore

_COLOURS = {"ok": "green", "info": "blue", "warning": "yellow", "error": "red"}


@click.command(epilog="Example: agl doctor --store http://127.0.0.1:4747")
@click.option("--store", "where", metavar="URL_OR_PATH", help="Also check the data in this store.")
@click.option("--backend", default="sqlite", show_default=True, help="Plugin that reads a path.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings, too.")
@click.option(
    "--silent-seconds",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds without a heartbeat or request after which a runner counts as gone.",
)
@click.option(
    "--max-traces",
    type=click.IntRange(min=0),
    default=500,
    show_default=True,
    help="Traces to read, newest first.",
)
@click.option("--no-plugin-check", is_flag=True, help="Do not test each plugin by itself.")
def doctor(
    where: str | None,
    backend: str,
    as_json: bool,
    strict: bool,
    silent_seconds: float,
    max_traces: int,
    no_plugin_check: bool,
) -> int:
    """Check the environment, the plugins and the data, and say what to do about problems.

    Exits with 1 if anything is an error.
    """
    from agl_doctor.checks import check_plugins, run_plugin_checks, run_store_checks
    from agl_doctor.environment import check_environment

    store = None if where is None else _open(where, backend)
    findings = check_environment()
    if not no_plugin_check:
        findings += check_plugins()
    findings += run_plugin_checks()
    if store is not None:

        async def look(store: LightningStore) -> list[Finding]:
            try:
                return await run_store_checks(
                    store, silent_seconds=silent_seconds, max_traces=max_traces
                )
            finally:
                await store.close()

        findings += asyncio.run(look(store))
    if as_json:
        print_json([finding.as_json() for finding in findings])
    else:
        _print(findings)
    bad = ("error", "warning") if strict else ("error",)
    return int(any(finding.severity in bad for finding in findings))


def _open(where: str, backend: str) -> LightningStore:
    if where.startswith(("http://", "https://")):
        return open_store(None, None, where)
    return open_store(backend, where, None, reading=True)


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        word = finding.severity.ljust(8)
        if in_terminal():
            word = click.style(word, fg=_COLOURS[finding.severity])
        click.echo(f"{word}{finding.check}: {finding.what}")
        if finding.todo:
            click.echo(f"        -> {finding.todo}")
    counts = Counter(finding.severity for finding in findings)
    click.echo(f"{counts['error']} errors, {counts['warning']} warnings")
