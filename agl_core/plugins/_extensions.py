"""Imports the objects that extension plugins provide: dialects, checks, listeners, …

A plugin that fails here is logged and left out, so that it does not affect the other plugins.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from agl_core.errors import PluginBrokenError, PluginError
from agl_core.plugins._imports import import_named, import_object
from agl_core.plugins._records import PluginRecord
from agl_core.plugins._registry import Registry, get_registry
from agl_core.plugins._spec import (
    AppSpec,
    CheckSpec,
    CommandSpec,
    DialectSpec,
    EnvironmentSpec,
    HookSpec,
    ResourceSpec,
    Spec,
)

if TYPE_CHECKING:
    import pluggy

    from agl_core.types import Resource

logger = logging.getLogger(__name__)

_DIALECT: Final = "agl_core.adapter:Dialect"


def import_extensions(kind: str) -> Iterator[tuple[PluginRecord, Any]]:
    """Yield the record of every usable plugin of a kind, and the object that its spec names.

    Args:
        kind: ``"dialect"``, ``"check"`` or ``"resource"``.
    """
    for record, spec in get_registry().extensions(kind):
        try:
            yield record, import_extension(record, spec)
        except PluginError as error:
            logger.error("a plugin is left out: %s", error)


def import_extension(record: PluginRecord, spec: Spec) -> Any:
    """Import the object that a spec names and check its type.

    The module of a :class:`HookSpec` is returned as a pluggy manager of its hooks.

    Raises:
        PluginBrokenError: The object does not import, or has the wrong type.
    """
    if isinstance(spec, DialectSpec):
        return _dialects(record, spec)
    if isinstance(spec, ResourceSpec):
        return _resource(record, spec)
    if isinstance(spec, HookSpec):
        return _listener(record, spec)
    if isinstance(spec, CheckSpec):
        dotted = spec.check
    elif isinstance(spec, AppSpec):
        dotted = spec.factory
    elif isinstance(spec, EnvironmentSpec):
        dotted = spec.load
    else:
        assert isinstance(spec, CommandSpec), spec
        return _command(record, spec)
    found = import_named(record, dotted)
    if not callable(found):
        raise _not(record, dotted, found, "a function")
    return found


# Cached, because a snapshot may hold many resources of a type that no plugin provides.
@lru_cache(maxsize=1024)
def _load_once(registry: Registry, name: str) -> None:
    from agl_core.types import register_resource_type

    for record in registry.usable("resource"):
        if record.name == name:
            try:
                register_resource_type(import_extension(record, registry.load(record)))
            except (PluginError, ValueError) as error:
                logger.error("a resource type is left out: %s", error)


def load_resource_type(name: str | None) -> None:
    """Register the resource type of this name, if an installed plugin provides it.

    Args:
        name: A ``resource_type``; None registers those of all plugins.
    """
    registry = get_registry()
    names = [record.name for record in registry.usable("resource")] if name is None else [name]
    for each in names:
        _load_once(registry, each)


def _dialects(record: PluginRecord, spec: DialectSpec) -> Sequence[Any]:
    found = import_named(record, spec.dialect)
    dialects = cast("Sequence[Any]", found if isinstance(found, (list, tuple)) else (found,))
    expected = import_object(_DIALECT)
    for dialect in dialects:
        if not isinstance(dialect, expected):
            raise _not(record, spec.dialect, dialect, "a Dialect")
    return dialects


def _resource(record: PluginRecord, spec: ResourceSpec) -> type[Resource]:
    from agl_core.types import Resource

    found = import_named(record, spec.resource)
    if not inspect.isclass(found) or not issubclass(found, Resource):
        raise _not(record, spec.resource, cast("object", found), "a subclass of Resource")
    default = found.model_fields["resource_type"].default
    if default != spec.name:
        raise PluginBrokenError(
            f"{record.key} of {record.origin} is broken: {spec.resource} has the resource_type "
            f"{default!r}, not {spec.name!r}"
        )
    return found


def _listener(record: PluginRecord, spec: HookSpec) -> pluggy.PluginManager:
    from agl_core.plugins._hookspecs import LifecycleEvents
    from agl_core.plugins._loading import broken, hook_manager

    try:
        return hook_manager(LifecycleEvents, importlib.import_module(spec.module), record.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin that calls sys.exit() must not end the program
        raise broken(record, error) from error


def _command(record: PluginRecord, spec: CommandSpec) -> Any:
    import click

    found = import_named(record, spec.target)
    if not isinstance(found, click.Command):
        raise _not(record, spec.target, found, "a click command")
    return found


def _not(record: PluginRecord, dotted: str, found: object, expected: str) -> PluginBrokenError:
    return PluginBrokenError(
        f"{record.key} of {record.origin} is broken: {dotted} is a {type(found).__name__}, not "
        f"{expected}"
    )
