"""Configures where the framework's log goes and how its lines look.

Each package logs to the logger of its own name (``agl_core``, ``acme_store``, …) and configures
no handlers. :func:`setup_logging` configures the loggers of the core and of the installed plugins;
it does not touch the root logger or any other.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agl_core.errors import InvalidArgumentError
from agl_core.known_errors import KnownErrors

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "DATE_FORMAT",
    "LOG_FORMAT",
    "configure_logger",
    "error_console",
    "setup_logging",
    "setup_module_logging",
]

LOG_FORMAT: Final = "%(asctime)s [%(levelname)s] (Process-%(process)d %(name)s) %(message)s"
DATE_FORMAT: Final = "%H:%M:%S"

_ROOT: Final = "agl_core"
_LIBRARY: Final = re.compile(r"agl-[a-z0-9-]+", re.IGNORECASE)
"""Name of a distribution that plugins are built on, at the start of a requirement."""
_PLAIN_WIDTH: Final = 200
"""Columns of rich output outside a terminal; rich's default of 80 would wrap most lines."""
_MAX_MESSAGE: Final = 4000
"""Characters of a message: a logged request body would hide what stands above it."""
_MAX_TRACEBACK: Final = 20_000
"""Characters of a message or a traceback that are logged."""
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, marks that change the direction of text, and lone surrogates."""

PathLike = str | os.PathLike[str]

# What the last configuration added; the next one removes it first.
_installed: Final[dict[str, list[logging.Handler]]] = {}
_submodules: Final[set[str]] = set()
_terminal: Final[list[Console]] = []


def setup_logging(
    level: int | str = "INFO",
    *,
    console: bool = True,
    color: bool = True,
    propagate: bool = False,
    disable_existing_loggers: bool = False,
    capture_warnings: bool = False,
    submodule_levels: Mapping[str, int | str] | None = None,
    extra_handlers: Sequence[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
    apply_to: Sequence[str] | None = None,
    files: PathLike | Mapping[str, PathLike] | None = None,
) -> None:
    """Configure the loggers of the core and of its plugins; each call replaces the previous one.

    Messages may contain text of foreign origin: long ones are cut, and control characters are
    escaped. A traceback is logged once; further errors from the same place are counted.

    Args:
        level: Level by name or number.
        console: Whether to log to standard error.
        color: Whether the console log is drawn by Rich, if standard error is a terminal.
        propagate: Whether records also go to the root logger's handlers.
        disable_existing_loggers: Disable existing loggers, but for those of the core, of its
            plugins and of ``apply_to``.
        capture_warnings: Log warnings of :mod:`warnings`, as ``py.warnings``.
        submodule_levels: Levels of child loggers, by full name.
        extra_handlers: Further handlers; those with a formatter keep it.
        formatter: Formatter of plain console lines and file lines.
        apply_to: Other loggers that get the same handlers and level, and stop propagating.
        files: A file for all records, or files by logger name. Directories are created; names with
            the same path share a file.

    Raises:
        InvalidArgumentError: The level is unknown.
    """
    base = _level(level)
    levels = {name: _level(wanted) for name, wanted in (submodule_levels or {}).items()}
    for name in [*_installed]:
        _uninstall(name)
    for name in _submodules:
        logging.getLogger(name).setLevel(logging.NOTSET)
    _submodules.clear()
    formatter = formatter or logging.Formatter(LOG_FORMAT, DATE_FORMAT)
    ours = {_ROOT, *_plugin_packages()}
    if disable_existing_loggers:
        _disable_others({*ours, *(apply_to or ())})
    logging.captureWarnings(capture_warnings)

    handlers = [_console(color, formatter)] if console else []
    handlers += [_formatted(handler, formatter) for handler in extra_handlers or ()]
    by_logger, everywhere = _file_handlers(files, formatter)
    handlers += everywhere

    others = {*(apply_to or ()), *(["py.warnings"] if capture_warnings else [])} - ours
    for name in sorted(ours | others):
        logger = logging.getLogger(name)
        logger.disabled = False
        logger.propagate = propagate if name in ours else False
        logger.setLevel(base)
        _install(name, handlers)
    for name, handler in by_logger.items():
        _install(name, [handler])
    _set_submodule_levels(levels, base)


def setup_module_logging(
    level: int | str = "INFO",
    *,
    name: str = _ROOT,
    console: bool = True,
    color: bool = True,
    propagate: bool = False,
    extra_handlers: Sequence[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
) -> logging.Logger:
    """Configure one logger.

    Args:
        level: Level by name or number.
        name: The logger.
        console: Whether to log to standard error.
        color: Whether the console log is coloured.
        propagate: Whether records also go to the handlers of its parents.
        extra_handlers: Further handlers.
        formatter: Formatter of plain lines.

    Returns:
        The logger.

    Raises:
        InvalidArgumentError: The level is unknown.
    """
    formatter = formatter or logging.Formatter(LOG_FORMAT, DATE_FORMAT)
    logger = logging.getLogger(name)
    logger.setLevel(_level(level))
    logger.propagate = propagate
    handlers = [_console(color, formatter)] if console else []
    handlers += [_formatted(handler, formatter) for handler in extra_handlers or ()]
    _uninstall(name)
    _install(name, handlers)
    return logger


def error_console() -> Console:
    """Return the console of standard error, for log lines, progress bars and tables.

    There is one for the terminal: text that another console prints would break the bars.
    """
    from rich.console import Console

    if not sys.stderr.isatty():
        return Console(stderr=True, width=_PLAIN_WIDTH)
    if not _terminal:
        _terminal.append(Console(stderr=True))
    return _terminal[0]


def configure_logger(level: int | str = logging.INFO, name: str = _ROOT) -> logging.Logger:
    """Configure one logger. Deprecated: use :func:`setup_logging`."""
    warnings.warn("use setup_logging instead of configure_logger", DeprecationWarning, stacklevel=2)
    return setup_module_logging(level, name=name)


def _plugin_packages() -> set[str]:
    """Return the top-level packages of all installed plugins and what they are built on.

    None is imported. A library without entry points is known by the plugins that require it.
    """
    found = entry_points(group="agl")
    required = (text for entry in found if entry.dist for text in entry.dist.requires or ())
    libraries = (name[0].lower() for name in map(_LIBRARY.match, required) if name)
    return {
        *(entry.value.partition(".")[0].partition(":")[0] for entry in found),
        *(name.replace("-", "_") for name in libraries),
    }


# -- foreign text --------------------------------------------------------------------------------


def _printable(text: str, limit: int) -> str:
    """Return text cut, with control characters escaped and continuation lines indented."""
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text) - limit} more characters)"
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text).replace("\n", "\n    ")


class _CleanFormatter(logging.Formatter):
    """Cuts and escapes what another formatter would write, and counts repeated tracebacks.

    Continuation lines are indented: no message can look like several records.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner
        self._errors = KnownErrors()

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)
        message = _printable(record.getMessage(), _MAX_MESSAGE)
        kind, error, trace = record.exc_info or (None, None, None)
        record.exc_info = record.exc_text = None
        if error is not None:
            lines = traceback.format_exception(kind, error, trace)
            times = self._errors.count(error, trace)
            if times == 1:
                record.exc_text = _printable("".join(lines).rstrip("\n"), _MAX_TRACEBACK)
            else:
                what = _printable(lines[-1].strip(), _MAX_MESSAGE)
                message += f": {what} (traceback as before; seen {times} times)"
        record.msg, record.args = message, None
        return self._inner.format(record)


# -- handlers ------------------------------------------------------------------------------------


class _LogFile(logging.FileHandler):
    """A file handler that this module opened and therefore closes."""


def _console(color: bool, formatter: logging.Formatter) -> logging.Handler:
    if not (color and sys.stderr.isatty()):
        return _formatted(logging.StreamHandler(), formatter)
    from rich.highlighter import NullHighlighter
    from rich.logging import RichHandler

    # Rich's highlighter takes time quadratic in the length of a message.
    handler = RichHandler(
        console=error_console(), highlighter=NullHighlighter(), log_time_format="[%X]"
    )
    return _formatted(handler, logging.Formatter("%(message)s"))


def _file_handlers(
    files: PathLike | Mapping[str, PathLike] | None, formatter: logging.Formatter
) -> tuple[dict[str, logging.Handler], list[logging.Handler]]:
    """Return handlers by logger name, and those that every configured logger gets."""
    if files is None:
        return {}, []
    if not isinstance(files, Mapping):
        return {}, [_file(Path(files), formatter)]
    opened: dict[Path, logging.Handler] = {}
    for path in {Path(path).absolute() for path in files.values()}:
        opened[path] = _file(path, formatter)
    return {name: opened[Path(path).absolute()] for name, path in files.items()}, []


def _file(path: Path, formatter: logging.Formatter) -> logging.Handler:
    path.parent.mkdir(parents=True, exist_ok=True)
    return _formatted(_LogFile(path, encoding="utf-8"), formatter)


def _formatted(handler: logging.Handler, formatter: logging.Formatter) -> logging.Handler:
    if handler.formatter is None:
        handler.setFormatter(_CleanFormatter(formatter))
    return handler


def _install(name: str, handlers: Iterable[logging.Handler]) -> None:
    logger = logging.getLogger(name)
    for handler in handlers:
        logger.addHandler(handler)
        _installed.setdefault(name, []).append(handler)


def _uninstall(name: str) -> None:
    logger = logging.getLogger(name)
    for handler in _installed.pop(name, ()):
        logger.removeHandler(handler)
        shared = any(handler in others for others in _installed.values())
        if isinstance(handler, _LogFile) and not shared:
            handler.close()


# -- levels --------------------------------------------------------------------------------------


def _level(level: int | str) -> int:
    if isinstance(level, int):
        return level
    known = logging.getLevelNamesMapping()
    number = known.get(level.strip().upper())
    if number is None:
        raise InvalidArgumentError(
            f"{level!r} is not a log level; use one of {', '.join(sorted(known))}"
        )
    return number


def _set_submodule_levels(levels: Mapping[str, int], base: int) -> None:
    for name, level in levels.items():
        if level < base:
            warnings.warn(
                f"{name} logs more ({logging.getLevelName(level)}) than the rest of the log "
                f"({logging.getLevelName(base)})",
                stacklevel=3,
            )
        logging.getLogger(name).setLevel(level)
        _submodules.add(name)


def _disable_others(kept: set[str]) -> None:
    """Disable loggers that are neither among these nor below one of them."""
    for name, logger in logging.root.manager.loggerDict.items():
        parts = name.split(".")
        above = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        if isinstance(logger, logging.Logger) and not above & kept:
            logger.disabled = True
