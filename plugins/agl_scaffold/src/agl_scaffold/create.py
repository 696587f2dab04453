"""Create a package from templates."""

from __future__ import annotations

import re
import shutil
import string
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from shlex import quote

from agl_core.errors import ConfigError
from agl_core.plugins import CORE_DISTRIBUTION
from agl_scaffold.checkout import checkout_of
from agl_scaffold.names import PluginName

__all__ = ["create_plugin", "next_commands"]

_SUFFIX = ".tmpl"  # keeps linters, type checkers and pytest away from the templates
_REQUIRES = {
    "store": ("agl-store-kit",),
    "algorithm": ("agl-algorithm-kit",),
    "runner": ("agl-runner",),
    "tracer": ("agl-tracer-otel",),
    "app": ("agl-store-http",),
    "command": ("agl-store-http",),
    "provider": ("agl-proxy-direct",),
    "proxy": ("agl-proxy-direct",),
}
"""Distributions that a package of a kind needs besides the core."""
_PACKAGE = "PACKAGE"  # placeholder for the package's name in a template's path


def create_plugin(name: PluginName, parent: Path) -> Path:
    """Write a package into a new folder of ``parent``, atomically.

    If ``parent`` is the folder ``plugins`` of this project's repository, the package becomes part
    of the repository, and its tests are written to ``tests/plugins``.

    Args:
        name: Kind and name of the plugin.
        parent: Folder in which the package's folder is created; created if missing.

    Returns:
        The package's folder.

    Raises:
        ConfigError: The folder exists already, or cannot be written.
    """
    checkout = checkout_of(parent)
    requires = _REQUIRES.get(name.kind, ())
    values = _values(name, checkout.version if checkout else version(CORE_DISTRIBUTION), requires)
    if checkout:
        values["install"] = checkout.install_line(name, requires)
    texts = {
        path.replace(_PACKAGE, name.package): string.Template(text).substitute(values)
        for path, text in _templates("common", "checkout" if checkout else "standalone", name.kind)
    }
    if checkout:
        target, folders = checkout.folders(name, texts)
    else:
        target = parent / name.distribution
        folders = {target: texts}
    _write(folders)
    return target


def next_commands(folder: Path) -> list[str]:
    """Return the commands that run the tests of a new package.

    Args:
        folder: What :func:`create_plugin` returned.
    """
    checkout = checkout_of(folder.parent)
    if checkout:
        return [
            f"cd {quote(str(checkout.root))}",
            f"python3 dev.py test tests/plugins/{folder.name}",
            "python3 dev.py packages    # lists it in README.md and CONTRIBUTING.md",
        ]
    return [f"cd {quote(str(folder))}", "pip install -e '.[test]'", "pytest"]


def _write(folders: Mapping[Path, Mapping[str, str]]) -> None:
    """Write new folders, all or none.

    Args:
        folders: The files of each folder, text by path.

    Raises:
        ConfigError: A folder exists already, or cannot be written.
    """
    for folder in folders:
        if folder.exists() or folder.is_symlink():
            other = "choose another name or --path"
            raise ConfigError(f"{folder} exists already: remove it, or {other}")
    made: dict[Path, Path] = {}
    folder = Path()
    try:
        for folder, texts in folders.items():
            folder.parent.mkdir(parents=True, exist_ok=True)
            # The draft is in the folder's parent, so that the last step is a rename.
            draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            made[folder] = draft
            for path, text in texts.items():
                file = draft / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            draft.chmod(0o755)  # mkdtemp's folders are private
        for folder, draft in list(made.items()):
            made[folder] = draft.rename(folder)
    except BaseException as error:
        for path in made.values():
            shutil.rmtree(path)
        if isinstance(error, OSError):
            why = error.strerror or error
            raise ConfigError(f"{folder} cannot be written: {why}") from error
        raise


def _values(name: PluginName, agl: str, requires: tuple[str, ...]) -> dict[str, str]:
    """Return the values of the placeholders.

    Args:
        name: Kind and name of the plugin.
        agl: Version of agl that the package is for.
        requires: Its requirements besides the core, which have the same version.
    """
    major, minor = agl.split(".")[:2]
    # A bound of 0.2 would exclude 0.2.0rc1; a bound has no local part, as in 0.2.0rc1+gabc.
    public = agl.partition("+")[0]
    lower = public if re.search("[a-z]", public) else f"{major}.{minor}"
    upper = f"0.{int(minor) + 1}" if major == "0" else f"{int(major) + 1}"
    bounds = f">={lower},<{upper}"
    return {
        "kind": name.kind,
        "name": name.name,
        "dist": name.distribution,
        "package": name.package,
        "Name": name.camel,
        "snake": name.snake,
        "NAME": name.snake.upper(),
        "version": agl,
        "range": bounds,
        "also": "".join(f'"{key}" = "{name.package}.hooks"\n' for key in _also(name)),
        "more": "".join(f', "{dist}{bounds}"' for dist in requires),
    }


def _also(name: PluginName) -> list[str]:
    """Return further entry points: a kind comes with a first plugin of the kind."""
    return [f"{name.name}.always"] if name.kind == "kind" else []


def _templates(*folders: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file; a file of a later folder replaces an earlier one."""
    root = files("agl_scaffold") / "templates"
    found: dict[str, Traversable] = {}
    for folder in folders:
        found |= {str(path): file for path, file in _walk(root / folder, PurePosixPath())}
    for path, file in sorted(found.items()):
        yield path.removesuffix(_SUFFIX), file.read_text(encoding="utf-8")


def _walk(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, path / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield path / entry.name, entry
