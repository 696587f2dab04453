"""Imports at first use: public names (PEP 562), and services that upper packages provide."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from agl_core.errors import MissingDependencyError

__all__ = ["lazy_names", "provide", "service"]

_services: dict[str, str] = {}


def provide(name: str, function: str) -> None:
    """Register the function that provides a service; it is imported on first use.

    This is how a lower package calls an upper one without importing it. ``agl_core/__init__.py``
    registers the providers.

    Args:
        name: Name of the service.
        function: ``"package.module:function"``.
    """
    _services[name] = function


def service(name: str) -> Callable[..., Any]:
    """Return the function that provides a service, importing its module.

    Raises:
        MissingDependencyError: A package provides it that is not installed.
    """
    module, _, function = _services[name].partition(":")
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        pip = package.replace("_", "-")
        raise MissingDependencyError(f"the service {name!r}", pip=pip) from error


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` for names that other modules define.

    The package imports the same names under ``TYPE_CHECKING``, for type checkers and readers.

    Args:
        package: The package's ``__name__``.
        homes: Module that defines each public name.
    """
    namespace = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(homes[name]), name)
        return value

    return find, lambda: sorted({*namespace, *homes})
