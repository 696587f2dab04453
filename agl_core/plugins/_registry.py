"""The registry: the installed plugins, and the plugin that a name refers to.

Reading the records never raises. Looking up a plugin by name raises an error that says what to do;
another component is never used instead.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Iterable

from agl_core.errors import (
    PluginBrokenError,
    PluginConflictError,
    PluginDisabledError,
    PluginError,
    PluginIncompatibleError,
    PluginNotFoundError,
)
from agl_core.plugins._known import known_names, package_of
from agl_core.plugins._records import PluginRecord, PluginStatus, canonical_name
from agl_core.plugins._spec import KINDS, ComponentSpec, Spec
from agl_core.plugins._switches import Switches

logger = logging.getLogger(__name__)

_ERRORS: dict[PluginStatus, type[PluginError]] = {
    "disabled": PluginDisabledError,
    "incompatible": PluginIncompatibleError,
    "conflict": PluginConflictError,
    "broken": PluginBrokenError,
}


class Registry:
    """The plugins of this process.

    Thread-safe. Not shared between processes: a child process discovers its plugins itself, with
    the switches that it inherits.

    Args:
        records: The records that were discovered, sorted.
        warnings: Problems of the switches, one line each.
    """

    def __init__(self, records: Iterable[PluginRecord], warnings: Iterable[str] = ()) -> None:
        self.records = tuple(records)
        self.warnings = tuple(warnings)
        self._specs: dict[PluginRecord, Spec] = {}
        self._lock = threading.RLock()

    @classmethod
    def discover(cls, switches: Switches | None = None) -> Registry:
        """Read the metadata of all installed distributions; imports no plugin and never raises.

        Args:
            switches: The switches; read from the environment by default.
        """
        from agl_core.plugins._discovery import discover

        switches = Switches.read() if switches is None else switches
        records = discover(switches)
        return cls(records, (*switches.problems, *switches.unknown(records)))

    def of_kind(self, kind: str) -> tuple[PluginRecord, ...]:
        """Return the records of one kind, with any status."""
        return tuple(record for record in self.records if record.kind == kind)

    def usable(self, kind: str) -> tuple[PluginRecord, ...]:
        """Return the records of one kind with status ``ok``."""
        return tuple(record for record in self.of_kind(kind) if record.status == "ok")

    def provides(self, kind: str, distribution: str) -> bool:
        """Return whether a distribution provides plugins of this kind."""
        return any(r.dist == canonical_name(distribution) for r in self.of_kind(kind))

    def find(self, kind: str, name: str) -> PluginRecord:
        """Return the plugin that a name refers to.

        Args:
            kind: One of :data:`~agl_core.plugins._spec.KINDS`.
            name: A name, or a pin: ``distribution:name``.

        Raises:
            PluginNotFoundError: No plugin of this name is installed.
            PluginConflictError: Several are installed, and the name is not a pin.
            PluginDisabledError: The plugin is disabled.
            PluginIncompatibleError: The plugin needs another version of the core.
            PluginBrokenError: The entry point is malformed.
        """
        if kind not in KINDS:
            raise PluginNotFoundError(f"there is no kind {kind!r} (kinds: {', '.join(KINDS)})")
        dist, colon, bare = name.rpartition(":")
        candidates = [r for r in self.of_kind(kind) if r.name == bare]
        if colon:
            candidates = [r for r in candidates if r.dist == canonical_name(dist)]
            if candidates and candidates[0].status == "conflict":
                return candidates[0]  # a pin resolves the conflict
        for record in candidates:
            if record.status == "ok":
                return record
        if not candidates:
            raise PluginNotFoundError(self._not_found(kind, bare, dist))
        # Report a conflict first: the user can resolve it without installing anything.
        candidates.sort(key=lambda r: r.status != "conflict")
        record = candidates[0]
        raise _ERRORS[record.status](f"{record.key} of {record.origin}: {record.error}")

    def load(self, record: PluginRecord) -> Spec:
        """Return the plugin's spec, importing its hook module the first time.

        Raises:
            PluginBrokenError: The plugin fails or does not return a valid spec.
            PluginIncompatibleError: The spec requires a newer plugin API.
        """
        with self._lock:
            spec = self._specs.get(record)
            if spec is None:
                from agl_core.plugins._loading import load_spec

                spec = self._specs[record] = load_spec(record)
            return spec

    def extensions(self, kind: str) -> list[tuple[PluginRecord, Spec]]:
        """Call the hook of every usable plugin of a kind; return records and specs in order.

        It serves the kinds whose plugins are all used together. A plugin that fails is logged and
        left out.
        """
        found: list[tuple[PluginRecord, Spec]] = []
        for record in self.usable(kind):
            try:
                found.append((record, self.load(record)))
            except PluginError as error:
                logger.error("a plugin is left out: %s", error)
        return found

    def component(self, kind: str, name: str) -> tuple[PluginRecord, ComponentSpec]:
        """Return record and spec of a component by name; raises the errors of find and load."""
        record = self.find(kind, name)
        spec = self.load(record)
        if not isinstance(spec, ComponentSpec):
            raise PluginNotFoundError(f"{record.key} is a {record.kind}, not a component")
        return record, spec

    def _not_found(self, kind: str, name: str, dist: str) -> str:
        package = package_of(kind, name)
        if dist and canonical_name(dist) != package:  # a distribution that this project may not own
            return f"no {kind} {name!r} of {dist} is installed; see `agl plugins list`"
        message = f"no {kind} {name!r} is installed"
        if package:
            upgrade = "--upgrade " * any(record.dist == package for record in self.records)
            return f"{message}: pip install {upgrade}{package}"
        installed = [record.name for record in self.usable(kind)]
        if guess := did_you_mean(name, installed):
            return f"{message}{guess} (installed: {', '.join(installed)})"
        for close in difflib.get_close_matches(name, known_names(kind), n=1):
            return f"{message}; did you mean {close!r}? pip install {package_of(kind, close)}"
        if not installed:
            return f"{message}, nor any other {kind}; see `agl plugins list --all`"
        return f"{message} (installed: {', '.join(installed)})"


def remedy(kind: str, name: str) -> str:
    """Return what keeps a plugin of this project from use: its status, or that it is missing."""
    states = [record.status for record in get_registry().of_kind(kind) if record.name == name]
    return f"{kind}.{name} is {states[0]}" if states else f"pip install {package_of(kind, name)}"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the choice nearest to ``word``, or an empty string."""
    for close in difflib.get_close_matches(word, list(choices), n=1):
        return f"; did you mean {close!r}?"
    return ""


_registry: Registry | None = None
_registry_lock = threading.Lock()


def get_registry() -> Registry:
    """Return the registry of this process; the first call discovers the plugins."""
    global _registry
    if _registry is None:
        with _registry_lock:
            if _registry is None:
                registry = Registry.discover()
                for warning in registry.warnings:
                    logger.warning("%s", warning)
                _registry = registry
    return _registry


def reset_registry(registry: Registry | None = None) -> None:
    """Replace the registry of this process; None discovers the plugins again at the next use."""
    global _registry
    with _registry_lock:
        _registry = registry
