"""The command ``agl``.

:func:`main` reports each outcome as an exit code and at most one line:

====  ==========================================================================================
code  meaning
====  ==========================================================================================
0     done
1     the command failed while running, or the reader of its output closed the pipe
2     the user's mistake: an unknown command or option, a bad file, a missing or broken plugin
130   Ctrl+C
====  ==========================================================================================

Authors of commands use the helpers of the commands here: :func:`store_options` and
:func:`open_store` for the store that a command reads or writes, :func:`kind_option` for a kind of
plugins, :func:`print_json` and :func:`print_table` for its output, :func:`setup_logging` for its
log, and :func:`error_console` for other text on standard error. They import click or logging, so
they are imported on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_cli_kit.kinds import kind_option
    from agl_cli_kit.logs import (
        configure_logger,
        error_console,
        setup_logging,
        setup_module_logging,
    )
    from agl_cli_kit.output import in_terminal, print_json, print_table
    from agl_cli_kit.stores import open_store, store_options

__all__ = [
    "configure_logger",
    "error_console",
    "in_terminal",
    "kind_option",
    "main",
    "open_store",
    "print_json",
    "print_table",
    "setup_logging",
    "setup_module_logging",
    "store_options",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("configure_logger", "error_console", "setup_logging", "setup_module_logging"),
            "agl_cli_kit.logs",
        ),
        "in_terminal": "agl_cli_kit.output",
        "kind_option": "agl_cli_kit.kinds",
        "open_store": "agl_cli_kit.stores",
        "print_json": "agl_cli_kit.output",
        "print_table": "agl_cli_kit.output",
        "store_options": "agl_cli_kit.stores",
    },
)

_TRACEBACK: Final = "--traceback"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``agl`` with these arguments and return the exit code.

    Args:
        argv: The arguments after ``agl``; by default those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    traceback = _take_traceback(arguments)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("agl: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if traceback:
            sys.excepthook(type(error), error, error.__traceback__)
        message, code = _explain(error)
        print(f"agl: error: {message}", file=sys.stderr)
        return code


def _run(arguments: list[str]) -> int:
    import click

    from agl_cli_kit.group import root

    try:
        code = root.main(arguments, prog_name="agl", standalone_mode=False)
    except _group_alone() as help_:
        click.echo(help_.format_message(), err=True)
        code = help_.exit_code
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.Abort as abort:
        # click raises Abort from KeyboardInterrupt and from EOFError; main() tells them apart.
        raise (abort.__cause__ or KeyboardInterrupt()) from None
    return code if type(code) is int else 0  # a plugin's command may return anything


def _group_alone() -> Any:
    """Return the error that click raises for a group without a command.

    Before 8.2 click had no such error and printed the help itself; an empty tuple catches nothing.
    """
    import click

    return getattr(click.exceptions, "NoArgsIsHelpError", ())


def _take_traceback(arguments: list[str]) -> bool:
    """Remove ``--traceback`` at any place, so that users can append it to a line that failed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [word for word in arguments[:end] if word != _TRACEBACK]
    found = len(kept) < end
    arguments[:end] = kept
    return found


def _explain(error: Exception) -> tuple[str, int]:
    """Return one line about ``error``, and the exit code."""
    import click

    from agl_core import errors

    if isinstance(error, click.UsageError):
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return _line(error.format_message()) + hint, 2
    if isinstance(error, click.ClickException):
        return _line(error.format_message()), error.exit_code
    mistakes = (
        errors.AgentSignatureError,
        errors.ComponentTypeError,
        errors.ConfigError,
        errors.InvalidArgumentError,
        errors.MissingDependencyError,
        errors.PluginError,
    )
    if isinstance(error, mistakes):
        return _line(errors.error_message(error)), 2
    if isinstance(error, errors.AglError):
        return _line(errors.error_message(error)), 1
    return f"{_line(errors.error_text(error))} ({_TRACEBACK} shows where)", 1


def _line(text: str) -> str:
    return " ".join(text.split())
