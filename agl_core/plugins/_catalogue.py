"""The catalogue: which packages provide which plugins, for messages that say what to install.

The core knows no package. A distribution that gathers packages may have one entry point
``catalogue.NAME``, whose module lists them. Messages never suggest other packages: anyone could
register an unused name.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agl_core.plugins._records import canonical_name
from agl_core.plugins._spec import Spec, hook_of

if TYPE_CHECKING:
    from agl_core.plugins._records import PluginRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogueSpec(Spec):
    """A list of packages. Its module imports nothing else, since it is read at each start.

    Experimental: a release may change it.

    Attributes:
        packages: The plugins of each distribution: ``{"acme-store": "store.acme command.acme"}``;
            an empty text for one without plugins.
        names: Module and distribution of names that ``agl_core`` gives if the package is installed.
        published: Whether the packages are on a package index under these names. If not, messages
            tell nobody to give pip the names: they may be a stranger's there.
    """

    packages: Mapping[str, str]
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    published: bool = False


class Catalogue:
    """The installed lists of packages, in order; the first that has a plugin or a name counts.

    Args:
        records: The usable plugins of the kind ``catalogue``. One that fails is left out here; its
            error is reported where plugins are checked.
    """

    def __init__(self, records: Iterable[PluginRecord]) -> None:
        self._owners: dict[str, str] = {}
        self._names: dict[str, tuple[str, str]] = {}
        self._sources: dict[str, str] = {}
        self._published: set[str] = set()
        for record in records:
            spec = _spec_of(record)
            if spec is not None:
                for dist, plugins in spec.packages.items():
                    if spec.published and dist not in self._sources:
                        self._published.add(dist)
                    self._sources.setdefault(dist, record.dist)
                    for key in plugins.split():
                        self._owners.setdefault(key, dist)
                for name, home in spec.names.items():
                    self._names.setdefault(name, home)

    def names_of(self, kind: str) -> tuple[str, ...]:
        """Return the names of the listed plugins of a kind."""
        keys = (key.split(".", 1) for key in self._owners)
        return tuple(name for of_kind, name in keys if of_kind == kind)

    def package_of(self, kind: str, name: str) -> str:
        """Return the listed distribution that provides a plugin, or an empty string."""
        return self._owners.get(f"{kind}.{name}", "")

    def home_of(self, name: str) -> tuple[str, str] | None:
        """Return module and distribution of a name that a listed package provides."""
        return self._names.get(name)

    def lists(self, dist: str) -> bool:
        """Return whether a distribution is listed."""
        return dist in self._sources

    def how_to_install(self, dist: str, *, extra: str = "", upgrade: bool = False) -> str:
        """Return what to do to get a listed distribution: a command only if it works here.

        The command names the package's folder if the catalogue itself was installed from a source
        tree (PEP 610), else the distribution if it is published.
        """
        wanted = f"[{extra}]" * bool(extra)
        needed = self._folders(dist, extra) or [dist] * (dist in self._published)
        if not needed:
            return f"{'upgrade' if upgrade else 'install'} {dist}{wanted} from its source"
        words = ("pip", "install", *["--upgrade"] * upgrade)
        return shlex.join((*words, *needed[1:], f"{needed[0]}{wanted}"))

    def _folders(self, dist: str, extra: str) -> list[str]:
        """Return the folder of a package in the catalogue's source tree, if it is there.

        After it come those of packages that it requires and that are not installed: pip would look
        for these on an index.
        """
        tree = _source_tree(self._sources.get(dist, ""))
        if tree is None or not _folder(tree, dist).is_dir():
            return []
        needed = [dist]
        for name in needed:  # the list grows while it is read
            for other in _required(_folder(tree, name), extra if name == dist else ""):
                is_here = self.lists(other) and _folder(tree, other).is_dir()
                if is_here and other not in needed and not _is_installed(other):
                    needed.append(other)
        return [_shown(_folder(tree, name)) for name in needed]


def _folder(tree: Path, dist: str) -> Path:
    return tree / dist.replace("-", "_")


def _required(folder: Path, extra: str) -> list[str]:
    """Return the names of what a package requires, as its ``pyproject.toml`` says."""
    import tomllib  # here, since only messages about missing packages need it

    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        project: Any = tomllib.loads(text).get("project", {})
    except (OSError, ValueError):
        return []
    lines = [
        *project.get("dependencies", ()),
        *project.get("optional-dependencies", {}).get(extra, ()),
    ]
    return [canonical_name(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines]


def _is_installed(dist: str) -> bool:
    try:
        distribution(dist)
    except PackageNotFoundError:
        return False
    return True


def _shown(folder: Path) -> str:
    here = Path.cwd()
    return f"./{folder.relative_to(here)}" if folder.is_relative_to(here) else str(folder)


def _spec_of(record: PluginRecord) -> CatalogueSpec | None:
    try:
        # Not through the loader: catalogues are read while plugins are discovered.
        spec: Any = getattr(import_module(record.value), hook_of("catalogue"))()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin that calls sys.exit() must not end the program
        logger.debug("%s of %s is left out: %r", record.key, record.origin, error)
        return None
    return spec if isinstance(spec, CatalogueSpec) else None


def _source_tree(dist: str) -> Path | None:
    """Return the folder above that from which a distribution was installed; None if unknown."""
    try:
        origin = distribution(dist).read_text("direct_url.json") if dist else None
        url = urlsplit(str(json.loads(origin)["url"])) if origin else None
    except (PackageNotFoundError, ValueError, KeyError, TypeError):
        return None
    if url is None or url.scheme != "file":
        return None
    # Here, since it imports an HTTP client with TLS, a third of what ``agl plugins list`` imports.
    from urllib.request import url2pathname

    return Path(url2pathname(url.path)).parent
