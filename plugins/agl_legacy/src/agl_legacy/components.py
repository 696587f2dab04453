"""``build_component`` with the arguments of 0.3, on top of agl's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from agl_core import plugins
from agl_core.errors import ComponentTypeError, ConfigError

__all__ = ["build_component"]

T = TypeVar("T")


def build_component(
    spec: object,
    *,
    expected_type: type[T],
    spec_name: str,
    default_factory: Callable[[], T] | None = None,
    allow_none: bool = False,
    optional_defaults: Mapping[str, Callable[[], Any]] | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: type[T] | None = None,
    type_error_fmt: str | None = None,
    invalid_spec_error_fmt: str | None = None,
    registry: Mapping[str, str] | None = None,
) -> T | None:
    """Return the component that ``spec`` describes.

    Args:
        spec: An instance, a class, a function without parameters, a dotted path or a name of the
            registry, or a dict of ``type`` (with a registry also ``name``) and arguments.
        expected_type: What it has to be.
        spec_name: Its name in messages.
        default_factory: Makes the component if ``spec`` is None.
        allow_none: Return None if ``spec`` is None and there is no factory.
        optional_defaults: Functions that make arguments; one is used if the constructor names the
            argument and ``spec`` does not give it.
        dict_requires_type: Refuse a dict without a type if there is no ``dict_default_cls``.
        dict_default_cls: The class of a dict without a type.
        type_error_fmt: Accepted; the message is agl's own.
        invalid_spec_error_fmt: Accepted; the message is agl's own.
        registry: Dotted paths by name.

    Raises:
        ConfigError: The spec is not valid (a ``ValueError``).
        ComponentTypeError: It makes something else (a ``TypeError``).
    """
    if isinstance(spec, expected_type):
        return spec
    if spec is None:
        if default_factory is None:
            if allow_none:
                return None
            raise ConfigError("must not be None", path=spec_name)
        return _checked(default_factory(), expected_type, spec_name)
    target, options = spec, dict[str, Any]()
    if isinstance(spec, Mapping):
        options = dict(cast("Mapping[str, Any]", spec))
        target = options.pop("type", None) or (options.pop("name", None) if registry else None)
        target = target or dict_default_cls
        if target is None:
            detail = "needs a 'type'" if dict_requires_type else "has no default class"
            raise ConfigError(f"a dict {detail}", path=spec_name)
    if isinstance(target, str):
        target = plugins.import_object((registry or {}).get(target, target))
    if isinstance(target, expected_type) and not options:
        return target
    if not callable(target):
        kind = expected_type.__name__
        raise ConfigError(f"cannot make {kind} from {type(target).__name__}", path=spec_name)
    if isinstance(target, type):
        known = inspect.signature(cast("type[Any]", target)).parameters
        for name, make in (optional_defaults or {}).items():
            if name in known and name not in options:
                options[name] = make()
    return _checked(target(**options), expected_type, spec_name)


def _checked(made: object, expected: type[T], name: str) -> T:
    if isinstance(made, expected):
        return made
    raise ComponentTypeError(f"{name}: {type(made).__name__} is not a {expected.__name__}")
