"""Builds a component from the user's specification of it.

These specifications are equivalent::

    SqliteStore(path="runs.db")                              # an instance
    {"type": "sqlite", "path": "runs.db"}                    # a name and options
    {"type": "acme_store:SqliteStore", "path": ...}          # a dotted path and options
    "store.toml"                                             # a file that holds such a table

Without options, ``"sqlite"``, ``"acme_store:SqliteStore"``, the class itself, or a function
without parameters that returns the component are valid, too. A name that two distributions provide
is pinned as ``"acme-store:sqlite"``. A dotted path may also lead to an instance, such as an
``@algo`` function.

A pydantic model checks the options: the one named in the plugin's
:class:`~agl_core.plugins._spec.ComponentSpec`, or, for a class given directly or by dotted path,
the one that its constructor takes (:func:`~agl_core.plugins.configured_by`) or its attribute
``Config``. The constructor gets the model if it takes one, and otherwise the model's fields as
keyword arguments. A class without a model gets the options unchanged.

A value that only the running program has (the store a proxy writes to, the number of runners) is
*injected*: a factory or its config model names the values that it wants ::

    class Strategy:
        injects: ClassVar[frozenset[str]] = frozenset({"store", "n_runners"})

and gets the values that exist and that the user did not set. A class without a config model and
without ``injects`` gets those that its constructor names, as in version 0.3; a function gets none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, TypeVar, Union, cast

from agl_core.errors import ComponentTypeError, ConfigError
from agl_core.plugins._blueprint import Blueprint
from agl_core.plugins._config import config_model_of
from agl_core.plugins._files import CONFIG_SUFFIXES, read_config_file
from agl_core.plugins._imports import import_named, import_object, is_dotted_path
from agl_core.plugins._kinds import KIND_SPECS
from agl_core.plugins._registry import get_registry

T = TypeVar("T")

ComponentLike: TypeAlias = Union[  # noqa: UP007 - a class is not an operand of | in an alias
    T, type[T], Callable[[], T], str, Path, Mapping[str, Any], None
]
"""Specification of a component of type ``T``; see the module's docstring."""


def build_component(
    kind: str,
    spec: object,
    *,
    inject: Mapping[str, Any] | None = None,
    expected: type | None = None,
    default: object = None,
    path: str = "",
) -> Any:
    """Return the component that ``spec`` describes.

    Args:
        kind: Kind of the component, of the core or of a plugin; names are looked up only for kinds.
        spec: See the module's docstring.
        inject: Values of the running program, by parameter name.
        expected: The class that the result must be an instance of; the kind's contract by default.
        default: A spec that replaces None, and the type of a table without one.
        path: Path of ``spec`` in a configuration, for messages; the kind by default.

    Raises:
        ConfigError: The spec has no known form, or its options are wrong (a ``ValueError``).
        ComponentTypeError: The object built is not a component of this kind (a ``TypeError``).
        PluginError: The requested plugin is missing, ambiguous, disabled, incompatible or broken.
    """
    contract = contract_of(kind) if expected is None else expected
    for candidate in (spec, default if spec is None else None):
        if contract is not None and isinstance(candidate, contract):
            return candidate
    blueprint = resolve_component(kind, spec, inject=inject, default=default, path=path)
    made = blueprint.build()
    if contract is not None and not isinstance(made, contract):
        raise ComponentTypeError(
            f"{blueprint.path}: {blueprint.source} made {_article(type(made).__name__)}, which is "
            f"not {_article(contract.__name__)}"
        )
    return made


def resolve_component(
    kind: str,
    spec: object,
    *,
    inject: Mapping[str, Any] | None = None,
    default: object = None,
    path: str = "",
) -> Blueprint:
    """Find the component that ``spec`` describes and check its options, without building it.

    A plugin's hook module and config model are imported, its implementation is not. The arguments
    are those of :func:`build_component`, except that ``spec`` must not be an instance.

    Raises:
        ConfigError: The spec has no known form, or its options are wrong (a ``ValueError``).
        PluginError: The requested plugin is missing, ambiguous, disabled, incompatible or broken.
    """
    path = path or kind
    spec = default if spec is None else spec
    if spec is None:
        raise ConfigError(f"no {kind} was given, and there is no default", path=path)
    if isinstance(spec, Path) or (isinstance(spec, str) and spec.lower().endswith(CONFIG_SUFFIXES)):
        spec = read_config_file(spec, path=path)
    target, options = spec, dict[str, Any]()
    if isinstance(spec, Mapping):
        options = {str(key): value for key, value in cast("Mapping[object, Any]", spec).items()}
        target = _take_type(kind, options, default, path)
    if isinstance(target, str):
        blueprint = _from_text(kind, target, options, inject or {}, path)
    elif _is_factory(target):
        blueprint = _from_factory(target, options, inject or {}, path)
    else:
        raise ConfigError(
            f"cannot make a component of kind {kind} from {_article(type(target).__name__)}: give "
            "an instance, a name, a table with a 'type', a dotted path, a class, or the path of a "
            "TOML or YAML file",
            path=path,
        )
    blueprint.check()
    return blueprint


def _take_type(kind: str, options: dict[str, Any], default: object, path: str) -> object:
    # agent-lightning 0.3 has names only for strategies, under the key "name".
    for key in ("type", "name") if kind == "execution" else ("type",):
        if key in options:
            return options.pop(key)
    if default is None or isinstance(default, Mapping):
        installed = "none"
        if kind in get_registry().kinds:
            names = [record.name for record in get_registry().usable(kind)]
            installed = ", ".join(names) or installed
        raise ConfigError(
            f"has no 'type' to say which {kind} is meant (installed: {installed})", path=path
        )
    return default


def _from_text(
    kind: str, text: str, options: dict[str, Any], inject: Mapping[str, Any], path: str
) -> Blueprint:
    registry = get_registry()
    dist, colon, name = text.rpartition(":")
    # A distribution and a module may have the same name; the distribution's plugin has precedence.
    pinned = bool(colon) and registry.provides(kind, dist, name)
    if is_dotted_path(text) and not pinned:
        found = import_object(text, path=path)
        if _is_factory(found):
            return _from_factory(found, options, inject, path)
        if options:
            raise ConfigError(f"{text} is an instance already and takes no options", path=path)
        return Blueprint(functools.partial(_the, found), path)
    record, spec = registry.component(kind, text)
    model = import_named(record, spec.config) if spec.config else None
    return Blueprint(spec.factory, path, options, inject, model, record)


def _from_factory(
    factory: Callable[..., object], options: dict[str, Any], inject: Mapping[str, Any], path: str
) -> Blueprint:
    model = None
    if isinstance(factory, type):
        model = config_model_of(factory) or getattr(factory, "Config", None)
    return Blueprint(factory, path, options, inject, model)


def _the(component: object) -> object:
    return component


def _is_factory(target: object) -> TypeGuard[Callable[..., object]]:
    """Return whether ``target`` is a class or function, not a component that is callable."""
    return isinstance(target, (type, functools.partial)) or inspect.isroutine(target)


def contract_of(kind: str) -> type | None:
    """Return the class that a component of this kind must be an instance of, or None."""
    spec = KIND_SPECS.get(kind)
    if spec is None and kind in get_registry().kinds:
        spec = get_registry().kind(kind)
    return import_object(spec.contract) if spec is not None and spec.contract else None


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
