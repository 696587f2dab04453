"""Imports the references of a train file: ``package.module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agl_core.errors import ConfigError
from agl_core.plugins import import_object, is_dotted_path


def is_reference(text: str) -> bool:
    """Tell whether ``text`` has the form of a reference."""
    return _split_file(text) is not None or (":" in text and is_dotted_path(text))


def import_reference(text: str, directory: Path, *, path: str) -> Any:
    """Import the object of a reference.

    A file is imported as the module of its name, with its directory on ``sys.path``, so that it can
    import the files next to it and child processes can import it.

    Args:
        text: The reference.
        directory: Base of a relative file path; also searched for modules.
        path: Key of the reference in the train file, for messages.

    Raises:
        ConfigError: There is no such file, module or name, or it does not import.
    """
    parts = _split_file(text)
    if parts is None:
        if text.endswith(".py"):
            raise ConfigError(f"name the object in {text}, as in {text}:NAME", path=path)
        search_in(directory)
        return import_object(text, path=path)
    file, attribute = (directory / parts[0]).resolve(), parts[1]
    if not file.is_file():
        raise ConfigError(f"there is no file {file}", path=path)
    if not file.stem.isidentifier():
        raise ConfigError(
            f"{file.name} cannot be imported: its name is not an identifier", path=path
        )
    search_in(file.parent)
    if not _is_found(file):
        raise ConfigError(
            f"{file.name} cannot be imported: another module is called {file.stem!r}; rename it",
            path=path,
        )
    return import_object(f"{file.stem}:{attribute}", path=path)


def _is_found(file: Path) -> bool:
    """Return whether an import of the file's name finds this file; imports nothing."""
    try:
        spec = find_spec(file.stem)
    except ValueError:  # a module that was not imported, such as __main__
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file


def dotted_path(text: str) -> str:
    """Return an imported reference as ``module:name``."""
    parts = _split_file(text)
    return text if parts is None else f"{Path(parts[0]).stem}:{parts[1]}"


def _split_file(text: str) -> tuple[str, str] | None:
    file, colon, attribute = text.rpartition(":")
    return (file, attribute) if colon and file.endswith(".py") and attribute else None


def search_in(directory: Path) -> None:
    """Let imports, also those of child processes, find the modules in a directory."""
    entry = str(directory.resolve())
    if entry not in sys.path:
        sys.path.insert(0, entry)
        importlib.invalidate_caches()
