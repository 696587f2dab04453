"""The option ``--kind`` of commands that list plugins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agl_core.errors import PluginNotFoundError
from agl_core.plugins import get_registry

F = TypeVar("F", bound=Callable[..., Any])


def kind_option(command: F) -> F:
    """Add the option ``--kind``: a kind of the core, or one that an installed plugin adds."""
    about = "Only plugins of this kind."
    return click.option("--kind", metavar="KIND", callback=_check, help=about)(command)


def _check(_ctx: click.Context, _param: click.Parameter, kind: str | None) -> str | None:
    if kind is not None:
        try:
            get_registry().kind(kind)
        except PluginNotFoundError as error:
            raise click.BadParameter(str(error)) from error
    return kind
