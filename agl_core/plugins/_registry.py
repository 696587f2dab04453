"""The registry: the installed plugins, and the plugin that a name refers to.

Reading the records never raises. Looking up a plugin by name raises an error that says what to do;
another component is never used instead.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agl_core.errors import (
    MissingDependencyError,
    PluginBrokenError,
    PluginConflictError,
    PluginDisabledError,
    PluginError,
    PluginIncompatibleError,
    PluginNotFoundError,
)
from agl_core.plugins._catalogue import Catalogue
from agl_core.plugins._kinds import KIND_SPECS, KINDS
from agl_core.plugins._records import PluginRecord, PluginStatus, canonical_name
from agl_core.plugins._spec import ComponentSpec, KindSpec, Spec
from agl_core.plugins._suggest import did_you_mean
from agl_core.plugins._switches import Switches

if TYPE_CHECKING:
    import pluggy

    from agl_core.plugins._loading import Loader

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
        self._modules: dict[str, list[object]] = {}
        self._lock = threading.Lock()
        self._loading: Loader | None = None

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

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The names of the core's kinds, and of those that usable plugins add."""
        return (*KINDS, *(record.name for record in self.usable("kind")))

    @cached_property
    def catalogue(self) -> Catalogue:
        """What the installed catalogues list."""
        return Catalogue(self.usable("catalogue"))

    def kind(self, name: str) -> KindSpec:
        """Return the description of a kind.

        Raises:
            PluginNotFoundError: There is no such kind.
            PluginError: The plugin that adds the kind cannot be used.
        """
        if name in KIND_SPECS:
            return KIND_SPECS[name]
        if name not in self.kinds:
            raise PluginNotFoundError(self._no_kind(name))
        return self._loader().kind(name)

    def of_kind(self, kind: str) -> tuple[PluginRecord, ...]:
        """Return the records of one kind, with any status."""
        return tuple(record for record in self.records if record.kind == kind)

    def usable(self, kind: str) -> tuple[PluginRecord, ...]:
        """Return the records of one kind with status ``ok``."""
        return tuple(record for record in self.of_kind(kind) if record.status == "ok")

    def provides(self, kind: str, distribution: str, name: str = "") -> bool:
        """Return whether a distribution provides a plugin of this kind and name, usable or not."""
        found = (r for r in self.of_kind(kind) if r.dist == canonical_name(distribution))
        return any(name in ("", record.name) for record in found)

    def find(self, kind: str, name: str) -> PluginRecord:
        """Return the plugin that a name refers to.

        Args:
            kind: One of :attr:`kinds`.
            name: A name, or a pin: ``distribution:name``.

        Raises:
            PluginNotFoundError: No plugin of this name is installed, or there is no such kind.
            PluginConflictError: Several are installed, and the name is not a pin.
            PluginDisabledError: The plugin is disabled.
            PluginIncompatibleError: The plugin needs another version of the core.
            PluginBrokenError: The entry point is malformed.
        """
        # A kind that is known but cannot be used has plugins, whose records say why.
        if kind not in self.kinds and not self.of_kind(kind):
            raise PluginNotFoundError(self._no_kind(kind))
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
            PluginIncompatibleError: The plugin is written for another plugin API.
        """
        spec = self._specs.get(record)
        if spec is None:
            spec = self._specs.setdefault(record, self._loader().load(record))
        return spec

    def _loader(self) -> Loader:
        with self._lock:
            if self._loading is None:
                from agl_core.plugins._loading import Loader

                self._loading = Loader({r.name: r for r in self.usable("kind")})
            return self._loading

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

    def resolved(self, kind: str) -> Iterator[tuple[PluginRecord, Any]]:
        """Yield each usable plugin of a kind, and what its spec names, in order.

        A plugin that fails is logged and left out.
        """
        for record, spec in self.extensions(kind):
            try:
                yield record, spec.resolve(record)
            except PluginError as error:
                logger.error("a plugin is left out: %s", error)

    def hook(self, kind: str, name: str) -> pluggy.HookCaller:
        """Return a hook of a kind whose plugins are modules of hook implementations.

        Experimental: a release may change it.

        Calling it with the hook's parameters calls the implementations of all usable plugins of the
        kind, in pluggy's order: ``tryfirst``, then by name, then ``trylast``.

        Args:
            kind: A kind whose specs are :class:`~agl_core.plugins.ModuleSpec`.
            name: Name of the hook.
        """
        modules = self._modules.get(kind)
        if modules is None:
            modules = [each for _, one in self.resolved(kind) for each in one.get_plugins()]
            self._modules[kind] = modules
        return self._loader().hook_of_kind(kind, name, modules)

    def component(self, kind: str, name: str) -> tuple[PluginRecord, ComponentSpec]:
        """Return record and spec of a component by name; raises the errors of find and load."""
        record = self.find(kind, name)
        spec = self.load(record)
        if not isinstance(spec, ComponentSpec):
            raise PluginNotFoundError(f"{record.key} is a {record.kind}, not a component")
        return record, spec

    def _no_kind(self, name: str) -> str:
        guess = did_you_mean(name, self.kinds)
        return f"there is no kind {name!r}{guess} (kinds: {', '.join(self.kinds)})"

    def _not_found(self, kind: str, name: str, dist: str) -> str:
        listed = self.catalogue
        package = listed.package_of(kind, name)
        if dist and canonical_name(dist) != package:  # a distribution that this project may not own
            return f"no {kind} {name!r} of {dist} is installed{self._see('list')}"
        message = f"no {kind} {name!r} is installed"
        if package:
            upgrade = any(record.dist == package for record in self.records)
            return f"{message}: {listed.how_to_install(package, upgrade=upgrade)}"
        usable = self.usable(kind)
        # Listed names come first: anyone may publish a package with a name like theirs.
        own = {r.name for r in usable if listed.package_of(kind, r.name) == r.dist}
        installed = f" (installed: {', '.join(record.name for record in usable)})" if usable else ""
        for close in difflib.get_close_matches(name, own.union(listed.names_of(kind)), n=1):
            how = listed.how_to_install(listed.package_of(kind, close))
            todo = "" if close in own else f" {how}"
            return f"{message}; did you mean {close!r}?{todo}{installed}"
        if guess := did_you_mean(name, [record.name for record in usable]):
            return f"{message}{guess}{installed}"
        return f"{message}{installed or f', nor any other {kind}' + self._see('list --all')}"

    def _see(self, words: str) -> str:
        """Return advice to run ``agl plugins``, where the command is installed."""
        there = any(record.name == "plugins" for record in self.of_kind("command"))
        return f"; see `agl plugins {words}`" * there


def known_names(kind: str) -> tuple[str, ...]:
    """Return the names of this kind that listed packages provide, installed or not."""
    return get_registry().catalogue.names_of(kind)


def package_of(kind: str, name: str) -> str:
    """Return the listed distribution that provides a plugin, or an empty string."""
    return get_registry().catalogue.package_of(kind, name)


def remedy(kind: str, name: str) -> str:
    """Return what keeps a plugin from use: its status, or that it is missing."""
    states = [record.status for record in get_registry().of_kind(kind) if record.name == name]
    if states:
        return f"{kind}.{name} is {states[0]}"
    package = package_of(kind, name)
    if not package:
        return f"no {kind} {name!r} is installed"
    return get_registry().catalogue.how_to_install(package)


def missing_package(feature: str, dist: str, *, extra: str = "") -> MissingDependencyError:
    """Return the error for a feature whose package is not installed.

    Args:
        feature: The feature, as users call it.
        dist: The package's distribution; empty if unknown. The message has a command only if it
            works here.
        extra: The extra of the package that is needed.
    """
    how = get_registry().catalogue.how_to_install(dist, extra=extra) if dist else ""
    needs = f"{feature} needs a package that is not installed"
    return MissingDependencyError(f"{needs}: {how}" if how else needs)


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
