"""The program ``agl``: runs a command, and reports its outcome."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["main"]

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
