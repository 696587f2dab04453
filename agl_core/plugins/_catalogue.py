"""The catalogue: which packages provide which plugins, for messages that say what to install.

The core knows no package. A distribution that gathers packages may have one entry point
``catalogue.NAME``, whose module lists them. Messages never suggest other packages: anyone could
register an unused name.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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

    def how_to_install(self, dist: str, *, upgrade: bool = False) -> str:
        """Return what to do to get a listed distribution: a command only if it works here."""
        if requirement := self.requirement(dist):
            return f"pip install {'--upgrade ' * upgrade}{shlex.quote(requirement)}"
        return f"{'upgrade' if upgrade else 'install'} {dist} from its source"

    def requirement(self, dist: str) -> str:
        """Return what to give ``pip install`` for a distribution, as it works for this user.

        It is the folder of the package if the catalogue itself was installed from a source tree
        (PEP 610), else the distribution's name if it is published, else an empty string.
        """
        source = _source_tree(self._sources.get(dist, ""))
        folder = source and source / dist.replace("-", "_")
        if not folder or not folder.is_dir():
            return dist if dist in self._published else ""
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
