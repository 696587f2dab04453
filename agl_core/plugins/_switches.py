"""Switches that disable plugins, read before any plugin is imported.

=======================  ======================================================================
``AGL_DISABLE_PLUGINS``  comma-separated selectors to disable; ``*`` selects every plugin
                         (``agl --no-plugins`` sets it)
``AGL_PLUGINS``          comma-separated selectors; if set, all other plugins are disabled
``[tool.agl]``           ``disable-plugins`` and ``plugins``, lists of selectors, in the nearest
                         ``pyproject.toml`` that has this table; applies together with the variables
=======================  ======================================================================

A selector is an entry point (``store.sqlite``), a distribution (``acme-store``), or both
(``acme-store:sqlite``).

Child processes inherit the variables, so a child has the same plugins as its parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from agl_core.plugins._records import PluginRecord, canonical_name

DISABLE_VARIABLE: Final = "AGL_DISABLE_PLUGINS"
"""Names the plugins to switch off."""
ALLOW_VARIABLE: Final = "AGL_PLUGINS"
EVERYTHING: Final = "*"
"""The selector of every plugin."""


@dataclass(frozen=True, slots=True)
class Switches:
    """The selectors in force.

    Attributes:
        disabled: Selectors of disabled plugins, each with its source (a variable or a file).
        allowed: Selectors of the only plugins to use; None if there is no such list.
        problems: Settings that could not be read, one line each.
    """

    disabled: Mapping[str, str]
    allowed: Mapping[str, str] | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def read(
        cls, environ: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> Switches:
        """Read the switches of this process.

        Args:
            environ: Environment variables; by default those of the process.
            directory: Directory in which the search for ``pyproject.toml`` starts; the working
                directory by default.
        """
        environ = os.environ if environ is None else environ
        disabled: dict[str, str] = {}
        allowed: dict[str, str] | None = None
        file, table, problems = _project_table(directory)
        for key, value in table.items():
            selectors, problem = _selectors(key, value, file)
            problems += problem
            if key == "disable-plugins":
                disabled.update(selectors)
            elif key == "plugins" and not problem:
                allowed = selectors
        disabled.update(_split(environ.get(DISABLE_VARIABLE, ""), DISABLE_VARIABLE))
        if listed := _split(environ.get(ALLOW_VARIABLE, ""), ALLOW_VARIABLE):
            allowed = listed
        return cls(disabled, allowed, tuple(problems))

    def verdict(self, record: PluginRecord) -> str:
        """Return a message on what disables ``record``; empty if it is enabled."""
        for selector, source in self.disabled.items():
            if _matches(selector, record):
                return f"switched off by {source}"
        if self.allowed is None:
            return ""
        if any(_matches(selector, record) for selector in self.allowed):
            return ""
        return f"not in {next(iter(self.allowed.values()), 'an empty list of plugins')}"

    def unknown(self, records: Iterable[PluginRecord]) -> tuple[str, ...]:
        """Return one line for each selector that matches no installed plugin."""
        records = tuple(records)
        named = {**self.disabled, **(self.allowed or {})}
        return tuple(
            f"{source} names {selector!r}, which is not installed"
            for selector, source in named.items()
            if selector != EVERYTHING and not any(_names(selector, record) for record in records)
        )


def _matches(selector: str, record: PluginRecord) -> bool:
    return selector == EVERYTHING or _names(selector, record)


def _names(selector: str, record: PluginRecord) -> bool:
    dist, colon, name = selector.partition(":")
    if colon:
        return canonical_name(dist) == record.dist and name in (record.name, record.key)
    return selector == record.key or canonical_name(selector) == record.dist


def _split(text: str, source: str) -> dict[str, str]:
    return {word.strip(): source for word in text.split(",") if word.strip()}


def _selectors(key: str, value: object, file: str) -> tuple[dict[str, str], list[str]]:
    source = f"[tool.agl] {key} of {file}"
    if key not in ("disable-plugins", "plugins"):
        return {}, [f"{source} is not known (known: disable-plugins, plugins)"]
    if not isinstance(value, list):
        return {}, [f"{source} is not a list of names"]
    words = cast("list[object]", value)
    if not all(isinstance(word, str) for word in words):
        return {}, [f"{source} is not a list of names"]
    return {str(word): source for word in words}, []


def _project_table(directory: Path | None) -> tuple[str, dict[str, Any], list[str]]:
    """Return the nearest file with ``[tool.agl]``, the table, and messages on unreadable files."""
    problems: list[str] = []
    try:
        start = (directory or Path.cwd()).absolute()
    except FileNotFoundError:  # the working directory was deleted
        return "", {}, []
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        try:
            data = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            problems.append(f"{file} cannot be read: {error}")
            continue
        if b"agl" not in data:  # most files have no such table, and parsing is slow
            continue
        import tomllib

        try:
            table = tomllib.loads(data.decode("utf-8-sig")).get("tool", {}).get("agl")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
            problems.append(f"{file} is not valid TOML: {error}")
            continue
        if isinstance(table, dict):
            return str(file), cast("dict[str, Any]", table), problems
    return "", {}, problems
