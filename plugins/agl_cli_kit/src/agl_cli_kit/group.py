"""The root of ``agl``: a group whose subcommands are the plugins of kind ``command``.

The help text needs only each command's hook module; a command is imported when it is run. A broken
plugin affects only its own line in the help.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

import click

from agl_cli_kit.hooks import agl_command
from agl_core.errors import PluginError, PluginNotFoundError
from agl_core.plugins import (
    DISABLE_VARIABLE,
    EVERYTHING,
    PluginRecord,
    Registry,
    Switches,
    get_registry,
    import_object,
    known_names,
    reset_registry,
)

_NO_PLUGINS: Final = "--no-plugins"
_PATIENCE: Final = 0.5
"""Longest wait for one hook module in the help, in seconds; most import in a few milliseconds."""
OWN: Final = {spec.name: spec for spec in agl_command()}
"""The commands of this package. They show what is wrong with plugins, so they work if all plugins
are switched off, and no plugin of the same name replaces them."""


class PluginGroup(click.Group):
    """A click group that also has the commands of plugins."""

    prefix: ClassVar[str] = ""
    """Start of the names of its plugins: ``"plugins."`` for commands of ``agl plugins``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._plugins()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        name = f"{self.prefix}{cmd_name}"
        if self.prefix and cmd_name not in self._plugins() and name not in known_names("command"):
            return None  # click knows the group's own commands, and says which one was meant
        try:
            return load_command(get_registry().find("command", name))
        except PluginNotFoundError as error:
            raise click.UsageError(str(error).replace("is installed", "exists"), ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = _summaries([f"{self.prefix}{name}" for name in self._plugins()])
        rows = {name.removeprefix(self.prefix): summary for name, summary in found.items()}
        longest = max(map(len, (*rows, *self.commands)), default=0)
        # 6 is what click leaves for the indent and the space between the columns.
        limit = formatter.width - 6 - longest
        rows |= {name: one.get_short_help_str(limit) for name, one in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))

    def _plugins(self) -> set[str]:
        """Return the names of the plugins that are commands of this group."""
        names = (record.name for record in get_registry().of_kind("command"))
        return {
            rest
            for name in names
            if name.startswith(self.prefix) and "." not in (rest := name.removeprefix(self.prefix))
        }


class _Root(PluginGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = OWN.get(cmd_name)
        return import_object(own.target) if own else super().get_command(ctx, cmd_name)

    def _plugins(self) -> set[str]:
        return super()._plugins() | OWN.keys()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # This runs before click parses: --help and subcommands read the registry of plugins.
        if _NO_PLUGINS in args[: _first_command(args)]:
            os.environ[DISABLE_VARIABLE] = EVERYTHING  # child processes inherit it
            # Here the errors name the option, since the user set no variable.
            switches = replace(Switches.read(), disabled={EVERYTHING: _NO_PLUGINS})
            reset_registry(Registry.discover(switches))
        return super().parse_args(ctx, args)


def load_command(record: PluginRecord) -> click.Command:
    """Import the command that a plugin provides.

    Raises:
        PluginBrokenError: The command does not import, or is not a click command.
    """
    return get_registry().load(record).resolve(record)


def _summaries(names: Sequence[str]) -> dict[str, str]:
    """Return the summaries of commands, without waiting for hook modules that import slowly.

    A thread loads them in order. If one takes longer than :data:`_PATIENCE`, another thread goes on
    with the next.
    """
    found: dict[str, str] = {}
    late: set[str] = set()
    waiting = deque(names)
    changed = threading.Condition()

    def load() -> None:
        while True:
            with changed:
                if not waiting:
                    return
                name = waiting.popleft()
            summary = _summary(name)
            with changed:
                found[name] = summary
                changed.notify()
                if name in late:
                    return  # another thread has taken over

    while waiting:
        # A daemon: the help does not wait at its end for a module that still imports.
        threading.Thread(target=load, daemon=True).start()
        with changed:
            while len(found.keys() | late) < len(names):
                if not changed.wait(_PATIENCE):
                    late.update(set(names).difference(found, waiting))
                    break
    slow = "(imports slowly, see `agl plugins doctor`)"
    return {name: found.get(name, slow) for name in names}


def _summary(name: str) -> str:
    if name in OWN:
        return OWN[name].summary
    registry = get_registry()
    try:
        return registry.load(registry.find("command", name)).summary
    except (PluginError, KeyboardInterrupt):
        return "(not usable, see `agl plugins doctor`)"


def _first_command(args: list[str]) -> int:
    return next((i for i, word in enumerate(args) if not word.startswith("-")), len(args))


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from agl_core import __version__

        click.echo(f"agl {__version__}")
        ctx.exit()


@click.group(
    cls=_Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: agl train train.toml",
)
@click.option(
    _NO_PLUGINS,
    is_flag=True,
    expose_value=False,
    help="Switch every plugin off: only the commands `plugins` and `version` are left.",
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
