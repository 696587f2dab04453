"""The names of a new plugin and of its parts."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from agl_core.errors import ConfigError
from agl_core.plugins import (
    KINDS,
    did_you_mean,
    get_registry,
    known_names,
    package_of,
)
from agl_core.types import resource_types

__all__ = ["PluginName"]

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PREFIXES: Final = {
    "store": "agl-store-",
    "tracer": "agl-tracer-",
    "adapter": "agl-adapter-",
    "algorithm": "agl-algo-",
    "proxy": "agl-proxy-",
    "execution": "agl-exec-",
    "llm_server": "agl-server-",
    "metrics": "agl-metrics-",
    "runner": "agl-runner-",
    "environment": "agl-env-",
}
_LONGEST: Final = 30  # characters; the name becomes part of file names and of a class's name


@dataclass(frozen=True, slots=True)
class PluginName:
    """The kind and the name of a new plugin, checked.

    Raises:
        ConfigError: The kind is unknown, or the name is malformed or taken.
    """

    kind: str
    name: str

    def __post_init__(self) -> None:
        kind, name = self.kind, self.name
        if kind not in KINDS:
            guess = did_you_mean(kind, KINDS)
            raise ConfigError(f"there is no kind {kind!r}{guess} (kinds: {', '.join(KINDS)})")
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise ConfigError(
                f"{name!r} is not a plugin name: use lower-case letters, digits and single "
                f"hyphens, a letter first, at most {_LONGEST} characters"
            )
        if keyword.iskeyword(name):
            raise ConfigError(f"{name!r} is a word of Python: take another name")
        if self.snake in _built_in(kind):
            raise ConfigError(f"agl-core has the {kind} {name!r} already: take another name")
        if name in known_names(kind):
            raise ConfigError(
                f"{package_of(kind, name)} has it already: install that, or take another name"
            )
        records = get_registry().of_kind(kind)
        owners = {record.dist for record in records if record.name == name}
        others = owners - {self.distribution}
        if others:
            owner = ", ".join(sorted(others))
            raise ConfigError(f"{owner} provides {kind}.{name}: take another name")
        if not owners and _exists(self.distribution):
            raise ConfigError(f"there is a package {self.distribution} already: take another name")

    @property
    def distribution(self) -> str:
        """Name of the distribution, which is also the folder's: ``agl-store-json-file``."""
        return _PREFIXES.get(self.kind, "agl-") + self.name

    @property
    def package(self) -> str:
        """Name of the import package: ``agl_store_json_file``."""
        return self.distribution.replace("-", "_")

    @property
    def camel(self) -> str:
        """The name in class names: ``JsonFile``."""
        return "".join(part.capitalize() for part in self.name.split("-"))

    @property
    def snake(self) -> str:
        """The name in function names: ``json_file``."""
        return self.name.replace("-", "_")


def _built_in(kind: str) -> set[str]:
    """Return the names of this kind that the core takes for itself, in the form of function names.

    The core would use its own, and never the plugin.
    """
    if kind == "kind":
        return set(KINDS)
    if kind == "resource":
        types = resource_types().items()
        return {name for name, one in types if one.__module__.partition(".")[0] == "agl_core"}
    if kind == "template_engine":
        return {"f_string", "poml"}
    return set()


def _exists(dist: str) -> bool:
    """Return whether a package of this name is installed or listed; pip would replace it."""
    try:
        distribution(dist)
    except PackageNotFoundError:
        return get_registry().catalogue.lists(dist)
    return True
