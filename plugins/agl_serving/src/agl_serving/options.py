"""Options that the commands of servers share: where to listen, and how much to log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from agl_serving.sockets import LOOPBACK

__all__ = ["listen_options", "log_level_option", "port_option"]

Command = TypeVar("Command", bound=Callable[..., Any])

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def listen_options(port: int, *, configured: bool = False) -> Callable[[Command], Command]:
    """Add ``--host`` and ``--port`` to a command that serves.

    Args:
        port: Default port.
        configured: Whether a configuration has the defaults; an option that is not given is None.
    """
    host_option = click.option(
        "--host",
        default=None if configured else LOOPBACK,
        show_default=LOOPBACK if configured else True,
        help="Interface to listen on.",
    )
    return lambda command: host_option(port_option(port, configured=configured)(command))


def port_option(port: int, *, configured: bool = False) -> Callable[[Command], Command]:
    """Add ``--port`` to a command that serves; see :func:`listen_options`."""
    return click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=None if configured else port,
        show_default=str(port) if configured else True,
        help="Port; 0 takes a free one.",
    )


def log_level_option(command: Command) -> Command:
    """Add ``--log-level`` to a command that serves."""
    option = click.option(
        "--log-level",
        type=click.Choice(_LEVELS, case_sensitive=False),
        default="INFO",
        show_default=True,
    )
    return option(command)
