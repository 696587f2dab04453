"""Imports objects by dotted path, and the errors of plugins whose objects do not fit.

The forms are ``pkg.mod:Class``, ``pkg.mod:Outer.Inner`` and ``pkg.mod.Class``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agl_core.errors import ConfigError, PluginBrokenError
from agl_core.plugins._suggest import did_you_mean

if TYPE_CHECKING:
    from agl_core.plugins._records import PluginRecord


def is_dotted_path(text: str) -> bool:
    """Return whether ``text`` has the form of a dotted path, without importing it."""
    module, colon, attribute = text.partition(":")
    if colon:
        return _is_dotted(module) and _is_dotted(attribute)
    return "." in text and _is_dotted(text)


def import_object(dotted: str, *, path: str = "") -> Any:
    """Import a module and return one of its attributes.

    Args:
        dotted: ``package.module:attribute``; a dot may replace the colon.
        path: Path in a configuration that holds the dotted path, for messages.

    Raises:
        ConfigError: ``dotted`` is not a dotted path, the module does not exist or does not import,
            or it does not have the attribute.
    """
    if not is_dotted_path(dotted):
        raise ConfigError(f"{dotted!r} is not of the form 'package.module:Name'", path=path)
    separator = ":" if ":" in dotted else "."
    module_name, _, attributes = dotted.rpartition(separator)
    module = _import_module(module_name, path)
    found: Any = module
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            names = [name for name in dir(found) if not name.startswith("_")]
            hint = did_you_mean(attribute, names)
            raise ConfigError(f"{module_name} has no {attributes!r}{hint}", path=path) from error
    return found


def import_named(record: PluginRecord, dotted: str) -> Any:
    """Import an object that a plugin's spec names.

    Raises:
        PluginBrokenError: The object does not import.
    """
    try:
        return import_object(dotted)
    except ConfigError as error:
        cause = error.__cause__ or error
        raise broken(record, cause) from cause


def broken(record: PluginRecord, error: BaseException, *, doing: str = "load") -> PluginBrokenError:
    """Return an error with the distribution, its version, and the command that may repair it."""
    return PluginBrokenError(
        f"{record.key} of {record.origin} does not {doing}: {one_line(error)}; {mend(record)}"
    )


def unusable(record: PluginRecord, problem: str) -> PluginBrokenError:
    """Return an error for a plugin that imports and is not what it has to be."""
    return PluginBrokenError(f"{record.key} of {record.origin} is broken: {problem}")


def wrong_type(
    record: PluginRecord, dotted: str, found: object, expected: str
) -> PluginBrokenError:
    """Return an error for an object that is not what a spec promises."""
    return unusable(record, f"{dotted} is a {type(found).__name__}, not {expected}")


def mend(record: PluginRecord) -> str:
    """Return what may repair a plugin."""
    return f"try to upgrade {record.dist}"


def one_line(error: BaseException) -> str:
    """Return type and message of an error on one line of at most about 300 characters."""
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = text[:297] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _import_module(name: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also a module that calls sys.exit() when it is imported
        missing = getattr(error, "name", None)
        if isinstance(error, ModuleNotFoundError) and missing and _is_within(name, missing):
            raise ConfigError(
                f"there is no module {missing!r} on the import path", path=path
            ) from error
        text = " ".join(str(error).split())
        raise ConfigError(
            f"module {name!r} does not import: {type(error).__name__}: {text}", path=path
        ) from error


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _is_dotted(text: str) -> bool:
    return bool(text) and all(part.isidentifier() for part in text.split("."))
