"""Create a package from templates."""

from __future__ import annotations

import shutil
import string
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from agl_core.errors import ConfigError
from agl_core.plugins import CORE_DISTRIBUTION
from agl_testing.scaffold.names import PluginName

__all__ = ["create_plugin"]

_SUFFIX = ".tmpl"  # keeps linters, type checkers and pytest away from the templates
_REQUIRES = {
    "app": ("agl-store-http",),
    "command": ("agl-store-http",),
    "provider": ("agl-proxy-direct",),
    "proxy": ("agl-proxy-direct",),
}
"""Distributions that a package of a kind needs besides the core."""
_PACKAGE = "PACKAGE"  # placeholder for the package's name in a template's path


def create_plugin(name: PluginName, parent: Path) -> Path:
    """Write a package into a new folder of ``parent``, atomically.

    Args:
        name: Kind and name of the plugin.
        parent: Folder in which the package's folder is created; created if missing.

    Returns:
        The package's folder.

    Raises:
        ConfigError: The folder exists already, or cannot be written.
    """
    target = parent / name.distribution
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists already: remove it, or choose another name or --path")
    values = _values(name)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # In the target's parent folder, so that the last step is a rename.
        draft = Path(tempfile.mkdtemp(prefix=f".{name.distribution}-", dir=parent))
        try:
            for path, text in _templates(name.kind):
                file = draft / path.replace(_PACKAGE, name.package)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(string.Template(text).substitute(values), encoding="utf-8")
            draft.chmod(0o755)  # mkdtemp's folders are private
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft)
            raise
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def _values(name: PluginName) -> dict[str, str]:
    major, minor = version(CORE_DISTRIBUTION).split(".")[:2]
    bounds = f">={major}.{minor},<{major}.{int(minor) + 1}"
    return {
        "kind": name.kind,
        "name": name.name,
        "dist": name.distribution,
        "package": name.package,
        "Name": name.camel,
        "snake": name.snake,
        "NAME": name.snake.upper(),
        "range": bounds,
        "more": "".join(f', "{dist}{bounds}"' for dist in _REQUIRES.get(name.kind, ())),
    }


def _templates(kind: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of a kind; its own files replace common ones."""
    root = files("agl_testing.scaffold") / "templates"
    found: dict[str, Traversable] = {}
    for folder in ("common", kind):
        found |= {str(path): file for path, file in _walk(root / folder, PurePosixPath())}
    for path, file in sorted(found.items()):
        yield path.removesuffix(_SUFFIX), file.read_text(encoding="utf-8")


def _walk(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, path / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield path / entry.name, entry
