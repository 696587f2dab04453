"""The command ``agl plugins new``."""

from __future__ import annotations

from pathlib import Path

import click

from agl_core.plugins import KINDS
from agl_scaffold.create import create_plugin, next_commands
from agl_scaffold.names import PluginName


@click.command(
    epilog="Example: agl plugins new store json-file",
    help="Write a package with a working plugin of KIND called NAME, and the tests it has to pass."
    f"\n\nKinds: {', '.join(KINDS)}."
    "\n\nIn the folder `plugins` of a clone of agl it becomes one of the packages of that "
    "repository.",
)
@click.argument("kind")
@click.argument("name")
@click.option(
    "--path",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder to make the package's folder in; the current one by default.",
)
def new(kind: str, name: str, path: Path) -> None:
    folder = create_plugin(PluginName(kind, name), path)
    click.echo(f"{folder} is ready. Next:")
    for command in next_commands(folder):
        click.echo(f"  {command}")
