"""Options that select the store of a command, and the function that opens it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agl_core.errors import ConfigError
from agl_core.plugins import build_component, missing_package, package_of

if TYPE_CHECKING:
    from agl_core.store import LightningStore

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
    backend: str | None,
    path: str | None,
    url: str | None,
    *,
    reading: bool = False,
    must_exist: bool = False,
) -> LightningStore:
    """Open the store that the options name.

    Args:
        backend: Store plugin.
        path: Where the plugin keeps its data.
        url: A store server; replaces ``backend`` and ``path``.
        reading: The store is only read, so it must exist; of one in a read-only folder a copy is
            read.
        must_exist: A missing file is an error and is not created.

    Raises:
        ConfigError: The options contradict each other, or there is no store where one must be.
        MissingDependencyError: A file is named, and no plugin for store files is installed.
        PluginError: The backend cannot be used.
    """
    from agl_core.store import default_store

    if url is not None:
        if backend or path:
            raise ConfigError("--url and --backend or --path mean different stores")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must be a server's, e.g. http://127.0.0.1:4747, not {url!r}")
        # A command says that its server is gone; it does not wait for it.
        spec = {"type": "http", "server_address": url, "reconnect_timeout": 0}
        return build_component("store", spec, path="--url")
    spec = default_store(Path.cwd()) if backend is None else {"type": backend}
    if path is not None:
        if backend is None and spec["type"] == "memory":
            raise missing_package("a store in a file", package_of("store", "sqlite"))
        spec["path"] = path
    if reading or must_exist:
        _check_exists(spec)
    if reading:
        spec = readable_store(spec)
    return build_component("store", spec)


def readable_store(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a store to read whose folder takes the files that SQLite keeps beside a store.

    A store in a folder that cannot be written to is copied; the copy goes with the process.

    Args:
        spec: A store as a table: its type and its options.
    """
    file = Path(spec.get("path") or "")
    if spec.get("type") != "sqlite" or not file.is_file() or os.access(file.parent, os.W_OK):
        return spec
    folder = Path(tempfile.mkdtemp(prefix="agl_store_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    click.echo(f"{file.parent} is read-only: reading a copy of {file.name}", err=True)
    # The log last: what moves from it into the file meanwhile is then in the copy at least once.
    for part in (file, file.with_name(file.name + "-wal")):
        if part.is_file():
            shutil.copy(part, folder / part.name)
            (folder / part.name).chmod(0o600)
    return {**spec, "path": str(folder / file.name)}


def _check_exists(spec: dict[str, Any]) -> None:
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
