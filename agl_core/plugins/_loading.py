"""Loads the plugins of a registry; the only module that uses stevedore and pluggy to do so.

stevedore imports the hook module that an entry point names. pluggy checks its functions against
the hookspecs and calls them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, NoReturn, cast

import pluggy
from stevedore import DriverManager

from agl_core.errors import ConfigError, PluginBrokenError, PluginError
from agl_core.plugins._api import check_api
from agl_core.plugins._imports import broken, import_object, mend, unusable
from agl_core.plugins._kinds import KIND_SPECS
from agl_core.plugins._records import PluginRecord
from agl_core.plugins._spec import (
    ENTRY_POINT_GROUP,
    ComponentSpec,
    KindSpec,
    ModuleSpec,
    Spec,
    hook_of,
)
from agl_core.plugins._trace import watch


class _HookModule(DriverManager[ModuleType]):
    """stevedore's manager of the one plugin that a record describes."""

    def __init__(self, record: PluginRecord) -> None:
        self._entry_point = EntryPoint(record.key, record.value, ENTRY_POINT_GROUP)
        super().__init__(ENTRY_POINT_GROUP, record.key, on_load_failure_callback=_raise)

    def list_entry_points(self) -> list[EntryPoint]:
        # stevedore loads, but does not find: its lookup drops the distribution, which a pin and
        # every message need, and its cache on disk compares times in single precision, so it may
        # miss what was installed in the last two minutes.
        return [self._entry_point]


class Loader:
    """Loads plugins, with one pluggy manager for the hooks of all kinds. Thread-safe.

    pluggy alone would call every module that is registered, and end at the first that raises. But
    a module may hold hooks of a plugin that is switched off, and one broken plugin must not break
    another. So each call is made on a subset: one module to describe a plugin, and the usable
    modules of a kind for the kind's own hooks. Listeners to life-cycle events have a manager of
    their own (:mod:`agl_core.plugins._events`).

    Args:
        kinds: The plugins that add kinds, by the name of the kind.
    """

    def __init__(self, kinds: Mapping[str, PluginRecord]) -> None:
        self._added = kinds
        self._kinds: dict[str, KindSpec] = {}
        self._spec_types: dict[str, type[Spec]] = {}
        self._with_hooks: set[str] = set()
        self._manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
        watch(self._manager)
        self._lock = threading.RLock()
        for spec in KIND_SPECS.values():
            self._add_kind(spec, import_object(spec.spec))

    def load(self, record: PluginRecord) -> Spec:
        """Import the plugin's hook module and return what its hook returns.

        Raises:
            PluginBrokenError: The module does not import or does not have the hook, or the hook
                raised or did not return a spec of the record's kind and name.
            PluginIncompatibleError: The plugin is written for a newer plugin API, or for one that
                is too old.
        """
        try:
            module = _import_hooks(record)  # without the lock, since an import may take long
            with self._lock:
                self.kind(record.kind)
                self._register(module)
            spec = self._call(record, module)
        except (KeyboardInterrupt, PluginError):
            raise
        except BaseException as error:  # a plugin that calls sys.exit() must not end the program
            raise broken(record, error) from error
        if isinstance(spec, Spec):
            check_api(record, spec.api)
        self._check_spec(record, spec)
        return spec

    def kind(self, name: str) -> KindSpec:
        """Return the description of a kind, loading the plugin that adds it.

        Raises:
            PluginError: The plugin does not load, or its hookspecs are not usable.
        """
        with self._lock:
            if name not in self._kinds:
                record = self._added[name]
                spec = self.load(record)
                assert isinstance(spec, KindSpec)
                try:
                    # A module that also has plugins of the kind added it when it was loaded.
                    if name not in self._kinds:
                        self._add_kind(spec, spec.resolve(record))
                except (PluginError, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    raise broken(record, error) from error
            return self._kinds[name]

    def hook_of_kind(self, kind: str, name: str, modules: Sequence[object]) -> pluggy.HookCaller:
        """Return a hook of a kind of modules that calls only these modules, in their order."""
        with self._lock:
            self.kind(kind)
            self._add_hooks_of(kind)
        return self._hook(name, modules)

    def _hook(self, name: str, modules: Sequence[object]) -> pluggy.HookCaller:
        with self._lock:
            for module in reversed(modules):  # pluggy calls first what was registered last
                self._register(module)
            others = self._manager.get_plugins().difference(modules)
            return self._manager.subset_hook_caller(name, others)

    def _add_kind(self, spec: KindSpec, spec_type: type[Spec]) -> None:
        self._manager.add_hookspecs(spec.hookspecs())
        self._kinds[spec.name] = spec
        self._spec_types[spec.name] = spec_type

    def _add_hooks_of(self, kind: str) -> None:
        """Add the hookspecs of a kind of modules, which may import much, when they are used."""
        spec_type = self._spec_types[kind]
        if not issubclass(spec_type, ModuleSpec) or kind in self._with_hooks:
            return
        try:
            self._manager.add_hookspecs(import_object(spec_type.hooks))
        except (
            ConfigError,
            ValueError,
        ) as error:
            raise PluginBrokenError(
                f"the hooks of the kind {kind!r} are broken: {error}"
            ) from error
        self._with_hooks.add(kind)

    def _register(self, module: object) -> None:
        if self._manager.is_registered(module):
            return
        try:
            self._manager.register(module)
            self._check_known(module)
        except BaseException:
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            raise

    def _check_known(self, module: object) -> None:
        """Refuse a module that implements unknown hooks; pluggy's own check is of all modules."""
        added = {hook_of(kind): kind for kind in self._added}
        for hook in self._manager.get_hookcallers(module) or ():
            if hook.name in added:
                try:
                    self.kind(added[hook.name])
                except PluginError:
                    continue  # reported with the plugins of that kind
            for kind in () if hook.has_spec() else tuple(self._kinds):
                with suppress(PluginError):  # reported by the first call of the kind's hooks
                    self._add_hooks_of(kind)
            mine = [each for each in hook.get_hookimpls() if each.plugin is module]
            if not hook.has_spec() and not all(each.optionalhook for each in mine):
                raise pluggy.PluginValidationError(module, f"unknown hook {hook.name!r}")

    def _call(self, record: PluginRecord, module: ModuleType) -> Any:
        hook = self._hook(hook_of(record.kind), [module])
        if not hook.get_hookimpls():
            raise unusable(record, f"{record.value} has no @hookimpl function {hook.name}")
        return _choose(record, hook())

    def _check_spec(self, record: PluginRecord, spec: object) -> None:
        wanted = self._spec_types[record.kind]
        if not isinstance(spec, wanted):
            said = f"{type(spec).__name__} and not {wanted.__name__}"
        elif isinstance(spec, ComponentSpec) and spec.kind != record.kind:
            said = f"a spec of kind {spec.kind!r} and not {record.kind!r}"
        elif spec.name != record.name:
            said = f"a spec of name {spec.name!r} and not {record.name!r}"
        else:
            return
        raise unusable(record, f"its hook returned {said}; {mend(record)}")


def hook_manager(specs: type, plugin: object, name: str) -> pluggy.PluginManager:
    """Return a pluggy manager with one plugin, whose hooks are checked against ``specs``.

    Raises:
        pluggy.PluginValidationError: A hook is unknown, or has a parameter that its hookspec lacks.
    """
    manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
    watch(manager)
    manager.add_hookspecs(specs)
    manager.register(plugin, name)
    manager.check_pending()
    return manager


def _raise(_manager: Any, _entry_point: EntryPoint, error: BaseException) -> NoReturn:
    raise error


def _import_hooks(record: PluginRecord) -> ModuleType:
    plugin: object = _HookModule(record).driver
    if not isinstance(plugin, ModuleType):
        raise TypeError(f"{record.value} is not a module")
    return plugin


def _choose(record: PluginRecord, returned: object) -> Any:
    """Return the spec with the record's name; a hook may return several specs of its kind."""
    if not isinstance(returned, (list, tuple)):
        return returned
    specs = cast("Sequence[object]", returned)
    for spec in specs:
        if getattr(spec, "name", None) == record.name:
            return spec
    names = ", ".join(repr(getattr(spec, "name", spec)) for spec in specs) or "nothing"
    raise unusable(record, f"its hook describes {names}; {mend(record)}")
