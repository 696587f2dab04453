"""The root of ``agl``: a group whose subcommands are the plugins of kind ``command``.

The help text needs only each command's hook module; a command is imported when it is run. A broken
plugin affects only its own line in the help.
"""

from __future__ import annotations

import os

import click

from agl_core.errors import PluginError, PluginNotFoundError
from agl_core.plugins import PluginRecord, get_registry, reset_registry
from agl_core.plugins._switches import DISABLE_VARIABLE, EVERYTHING


class PluginGroup(click.Group):
    """A click group that finds its commands in the registry."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({record.name for record in get_registry().of_kind("command")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return load_command(get_registry().find("command", cmd_name))
        except PluginNotFoundError as error:
            raise click.UsageError(str(error).replace("is installed", "exists"), ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        registry = get_registry()
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            try:
                spec = registry.load(registry.find("command", name))
            except PluginError:
                rows.append((name, "(not usable, see `agl plugins doctor`)"))
            else:
                rows.append((name, spec.summary))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # This runs before click parses: --help and subcommands read the registry of plugins.
        if "--no-plugins" in args[: _first_command(args)]:
            os.environ[DISABLE_VARIABLE] = EVERYTHING  # child processes inherit it
            reset_registry()
        return super().parse_args(ctx, args)


def load_command(record: PluginRecord) -> click.Command:
    """Import the command that a plugin provides.

    Raises:
        PluginBrokenError: The command does not import, or is not a click command.
    """
    return get_registry().load(record).resolve(record)


def _first_command(args: list[str]) -> int:
    return next((i for i, word in enumerate(args) if not word.startswith("-")), len(args))


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from agl_core import __version__

        click.echo(f"agl {__version__}")
        ctx.exit()


@click.group(
    cls=PluginGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: agl train train.toml",
)
@click.option(
    "--no-plugins",
    is_flag=True,
    expose_value=False,
    help="Use the built-in components and commands only.",
)
@click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    help="Show where an error came from; may be anywhere on the line.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def root() -> None:
    """Train any AI agent."""
