"""Loads a plugin's spec; the only module that uses stevedore and pluggy.

stevedore imports the hook module that an entry point names; pluggy checks its hooks against the
hookspecs and calls the hook of the entry point's kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, cast

import pluggy
from stevedore import ExtensionManager

from agl_core.errors import PluginBrokenError, PluginError, PluginIncompatibleError
from agl_core.plugins._hookspecs import KindHooks, LifecycleEvents
from agl_core.plugins._records import CORE_DISTRIBUTION, PluginRecord
from agl_core.plugins._spec import (
    COMPONENT_KINDS,
    ENTRY_POINT_GROUP,
    PLUGIN_API_VERSION,
    AppSpec,
    CheckSpec,
    CommandSpec,
    ComponentSpec,
    DialectSpec,
    EnvironmentSpec,
    HookSpec,
    ProviderSpec,
    ResourceSpec,
    Spec,
)

_SPEC_TYPES: dict[str, type[Spec]] = {
    **dict.fromkeys(COMPONENT_KINDS, ComponentSpec),
    "command": CommandSpec,
    "app": AppSpec,
    "hook": HookSpec,
    "dialect": DialectSpec,
    "provider": ProviderSpec,
    "check": CheckSpec,
    "resource": ResourceSpec,
    "environment": EnvironmentSpec,
}


class _Found(ExtensionManager[ModuleType]):
    """A stevedore manager that loads the given entry points instead of looking them up."""

    def __init__(self, entry_points: Iterable[EntryPoint]) -> None:
        self._found = list(entry_points)
        super().__init__(ENTRY_POINT_GROUP, on_load_failure_callback=_raise)

    def list_entry_points(self) -> list[EntryPoint]:
        # stevedore's own lookup drops the distribution. It also caches on disk by modification
        # times in single precision, so it may miss plugins installed in the last two minutes.
        return self._found


def load_spec(record: PluginRecord) -> Spec:
    """Import the plugin's hook module and return what its hook returns.

    Raises:
        PluginBrokenError: The module does not import or does not have the hook, or the hook raised
            or did not return a spec of the record's kind and name.
        PluginIncompatibleError: The spec requires a newer plugin API.
    """
    try:
        spec = _call_hook(record, _import_hooks(record))
    except (KeyboardInterrupt, PluginError):
        raise
    except BaseException as error:  # a plugin that calls sys.exit() must not end the program
        raise broken(record, error) from error
    api = getattr(spec, "api", None)
    if isinstance(api, int) and api > PLUGIN_API_VERSION:
        raise PluginIncompatibleError(
            f"{record.key} of {record.origin} is written for plugin API {api}, this core has "
            f"{PLUGIN_API_VERSION}: pip install --upgrade {CORE_DISTRIBUTION}"
        )
    _check_spec(record, spec)
    return spec


def hook_manager(specs: type, plugin: object, name: str) -> pluggy.PluginManager:
    """Return a pluggy manager with one plugin, whose hooks are checked against ``specs``.

    Each plugin has its own manager, because pluggy ends a call at the first plugin that raises.

    Raises:
        pluggy.PluginValidationError: A hook is unknown, or has a parameter that its hookspec lacks.
    """
    manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
    manager.add_hookspecs(specs)
    manager.register(plugin, name)
    manager.check_pending()
    return manager


def broken(record: PluginRecord, error: BaseException, *, doing: str = "load") -> PluginBrokenError:
    """Return an error with the distribution, its version, and the command that may repair it."""
    return PluginBrokenError(
        f"{record.key} of {record.origin} does not {doing}: {one_line(error)}; {_mend(record)}"
    )


def one_line(error: BaseException) -> str:
    """Return type and message of an error on one line of at most about 300 characters."""
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = text[:297] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _mend(record: PluginRecord) -> str:
    return f"try: pip install --upgrade {record.dist}"


def _raise(_manager: Any, _entry_point: EntryPoint, error: BaseException) -> None:
    raise error


def _import_hooks(record: PluginRecord) -> ModuleType:
    entry_point = EntryPoint(record.key, record.value, ENTRY_POINT_GROUP)
    (extension,) = _Found([entry_point]).extensions
    plugin: object = extension.plugin
    if not isinstance(plugin, ModuleType):
        raise TypeError(f"{record.value} is not a module")
    return plugin


def _call_hook(record: PluginRecord, module: ModuleType) -> Any:
    manager = hook_manager(_BothFamilies, module, record.key)
    hook_name = f"agl_{record.kind}"
    hook = getattr(manager.hook, hook_name)
    if not hook.get_hookimpls():
        raise PluginBrokenError(
            f"{record.key} of {record.origin} is broken: {record.value} has no @hookimpl function "
            f"{hook_name}"
        )
    return _choose(record, hook())


def _choose(record: PluginRecord, returned: object) -> Any:
    """Return the spec with the record's name; a hook may return several specs of its kind."""
    if not isinstance(returned, (list, tuple)):
        return returned
    specs = cast("Sequence[object]", returned)
    for spec in specs:
        if getattr(spec, "name", None) == record.name:
            return spec
    names = ", ".join(repr(getattr(spec, "name", spec)) for spec in specs) or "nothing"
    raise PluginBrokenError(
        f"{record.key} of {record.origin} is broken: its hook describes {names}; {_mend(record)}"
    )


def _check_spec(record: PluginRecord, spec: object) -> None:
    wanted = _SPEC_TYPES[record.kind]
    if not isinstance(spec, wanted):
        said = f"{type(spec).__name__} and not {wanted.__name__}"
    elif isinstance(spec, ComponentSpec) and spec.kind != record.kind:
        said = f"a spec of kind {spec.kind!r} and not {record.kind!r}"
    elif spec.name != record.name:
        said = f"a spec of name {spec.name!r} and not {record.name!r}"
    else:
        return
    raise PluginBrokenError(
        f"{record.key} of {record.origin} is broken: its hook returned {said}; {_mend(record)}"
    )


class _BothFamilies(KindHooks, LifecycleEvents):
    """The hooks that a hook module may implement."""
