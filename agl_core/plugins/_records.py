"""Records of installed plugins, built from metadata without importing the plugins.

Problems are data: :class:`PluginRecord` describes what is wrong with a plugin. Only a lookup of a
plugin by name raises.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

CORE_DISTRIBUTION: Final = "agl-core"

PluginStatus = Literal["ok", "disabled", "incompatible", "conflict", "broken"]
"""Status of a plugin:

* ``ok``: no problem is known; it can still be broken when it is loaded;
* ``disabled``: switched off by the user;
* ``incompatible``: written for another version of the core;
* ``conflict``: another distribution provides the same name, and the user has to choose;
* ``broken``: its entry point is malformed, or it failed when it was loaded.
"""

_WORDS: Final = r"[a-z0-9]+(?:[-_][a-z0-9]+)*"
_NAME: Final = re.compile(rf"(?P<kind>[^.]+)\.(?P<name>{_WORDS}|(?<=command\.){_WORDS}\.{_WORDS})")
"""Only a command may have two names: ``command.plugins.doctor`` is ``agl plugins doctor``."""
_SEPARATORS: Final = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One entry point of the group ``agl``.

    Attributes:
        kind: The kind, or the text before the dot if that is not a kind.
        name: Name of the plugin in configurations.
        dist: Distribution that provides it, in canonical spelling.
        version: Version of that distribution.
        status: One of :data:`PluginStatus`.
        error: One line on the problem and its solution; empty without a problem.
        value: Target of the entry point, the hook module.
        requires: Requirements of the distribution, as in its metadata.
    """

    kind: str
    name: str
    dist: str
    version: str
    status: PluginStatus
    error: str
    value: str
    requires: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name of the entry point: ``store.sqlite``."""
        return f"{self.kind}.{self.name}"

    @property
    def pin(self) -> str:
        """The unambiguous name, with the distribution: ``acme-store:sqlite``."""
        return f"{self.dist}:{self.name}"

    @property
    def origin(self) -> str:
        """Distribution and version, for messages: ``acme-store 1.2``."""
        return f"{self.dist} {self.version}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"requires": list(self.requires)}


def canonical_name(distribution: str) -> str:
    """Return the normalized name of a distribution (PEP 503)."""
    return _SEPARATORS.sub("-", distribution).lower()


def split_name(entry_point: str) -> tuple[str, str, str]:
    """Split ``kind.name`` and check its form.

    Returns:
        Kind, name, and an error message, which is empty if the form is right.
    """
    match = _NAME.fullmatch(entry_point)
    if match is None:
        kind, _, name = entry_point.partition(".")
        return kind, name, f"entry point {entry_point!r} is not named 'kind.name' in lower case"
    return match["kind"], match["name"], ""
