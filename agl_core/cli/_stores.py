"""Options that select the store of a command, and the function that opens it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agl_core.errors import ConfigError, MissingDependencyError
from agl_core.plugins import build_component

if TYPE_CHECKING:
    from agl_core.store._base import LightningStore

F = TypeVar("F", bound=Callable[..., Any])


def store_options(command: F) -> F:
    """Add the options that select a store."""
    options = [
        click.option("--backend", help="Store plugin; by default the one of `agl store`."),
        click.option("--path", help="Where the backend keeps its data."),
        click.option("--url", help="A store server instead, e.g. http://127.0.0.1:4747."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def open_store(
    backend: str | None, path: str | None, url: str | None, *, reading: bool = False
) -> LightningStore:
    """Open the store that the options name.

    Args:
        backend: Store plugin.
        path: Where the plugin keeps its data.
        url: A store server; replaces ``backend`` and ``path``.
        reading: The store must exist: a missing file is an error and is not created.

    Raises:
        ConfigError: The options contradict each other, or there is no store to read.
        MissingDependencyError: A file is named, and no plugin for store files is installed.
        PluginError: The backend cannot be used.
    """
    from agl_core.store._default import default_store

    if url is not None:
        if backend or path:
            raise ConfigError("--url and --backend or --path mean different stores")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must be a server's, e.g. http://127.0.0.1:4747, not {url!r}")
        return build_component("store", {"type": "http", "server_address": url}, path="--url")
    spec = default_store(Path.cwd()) if backend is None else {"type": backend}
    if path is not None:
        if backend is None and spec["type"] == "memory":
            raise MissingDependencyError("a store in a file", pip="agl-store-sqlite")
        spec["path"] = path
    if reading:
        _check_readable(spec)
    return build_component("store", spec)


def _check_readable(spec: dict[str, Any]) -> None:
    if spec["type"] == "memory":
        raise ConfigError(
            "a store in memory is gone with its process: name a file with --path, or a server "
            "with --url"
        )
    file = spec.get("path")
    if isinstance(file, str) and not Path(file).exists():
        raise ConfigError(
            f"there is no store {file}: name its file with --path, or its server with --url"
        )
