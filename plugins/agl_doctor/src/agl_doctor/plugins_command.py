"""The command ``agl plugins doctor``."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from agl_cli_kit import kind_option, print_json, print_table
from agl_core.plugins import canonical_name, did_you_mean, get_registry


@click.command("doctor", epilog="Example: agl plugins doctor --strict")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@kind_option
@click.option("--dist", metavar="NAME", help="Only plugins of this distribution.")
@click.option(
    "--strict", is_flag=True, help="Exit with 1 for warnings, conflicts and old plugins, too."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Seconds each plugin may take.",
)
@click.option("--no-build", is_flag=True, help="Import the components without building them.")
def plugins_doctor(
    as_json: bool,
    kind: str | None,
    dist: str | None,
    strict: bool,
    timeout: float,
    no_build: bool,
) -> int:
    """Load each plugin in a separate process and report its problems; exit with 1 if one is broken.

    Components that need no options are also built, in an empty directory.
    """
    from agl_core.algorithm import show_progress
    from agl_doctor.examine import Examined, examine

    records = [record for record in get_registry().records if kind in (None, record.kind)]
    if dist is not None:
        dists = {record.dist for record in records}
        records = [record for record in records if record.dist == canonical_name(dist)]
        if not records:
            hint = did_you_mean(canonical_name(dist), dists) or "; see `agl plugins list`"
            raise click.UsageError(f"{dist} provides no such plugin{hint}")
    count = "1 plugin" if len(records) == 1 else f"{len(records)} plugins"
    if not as_json and not sys.stderr.isatty():
        click.echo(f"loading {count}, each in a process of its own", err=True)
    with show_progress("plugins", len(records)) as progress:
        waiting = [record.key for record in records]

        def tell(one: Examined) -> None:
            waiting.remove(one.key)
            note = f"waiting for {waiting[0]}" if waiting else ""
            progress.update(len(records) - len(waiting), note)

        examined = examine(records, timeout=timeout, build=not no_build, tell=tell)
    if as_json:
        print_json([asdict(one) for one in examined])
    else:
        rows = [[f.key, f.status, f.dist, f.version, f"{f.seconds:.2f}", f.note] for f in examined]
        print_table(["plugin", "status", "distribution", "version", "seconds", "note"], rows)
    harmless = ["ok", "disabled"]
    if not strict:
        harmless += ["warning", "conflict", "incompatible"]
    return int(any(one.status not in harmless for one in examined))
