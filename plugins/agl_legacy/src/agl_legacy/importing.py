"""The compatibility import: ``import agentlightning`` finds agl's objects.

A finder on ``sys.meta_path`` serves the modules of :mod:`agl_legacy.names`. Nothing is written to
the environment: a program that does not call :func:`install` has no module of that name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from agl_core.errors import AglError, MissingDependencyError
from agl_core.plugins import missing_package
from agl_legacy.children import share_with_children, stop_sharing
from agl_legacy.names import HERE, PACKAGE, PAGE, VERSION, section_of

__all__ = ["AlreadyInstalledError", "NotHereError", "install", "uninstall"]


class AlreadyInstalledError(AglError, RuntimeError):
    """The package ``agentlightning`` is installed; serving its name would hide it."""


class NotHereError(AglError, ModuleNotFoundError):
    """A module or name of 0.3 is not part of agl; the message names the page to read."""


def install() -> None:
    """Make ``import agentlightning`` find agl, here and in processes that multiprocessing starts.

    Call it before the first import of that name. Idempotent.

    Raises:
        AlreadyInstalledError: There is a package of that name.
    """
    if _finder in sys.meta_path:
        return
    spec = find_spec(PACKAGE)
    if spec is not None and spec.origin is not None:  # None: a folder without a package in it
        raise AlreadyInstalledError(
            f"{PACKAGE} is installed ({spec.origin}) and would be hidden: "
            f"run `pip uninstall {PACKAGE}`, or run the program without agl_legacy"
        )
    sys.meta_path.insert(0, _finder)
    share_with_children(install)


def uninstall() -> None:
    """Undo :func:`install` and forget the modules that it served. Idempotent."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    stop_sharing()
    for name, module in list(sys.modules.items()):
        if isinstance(module, ServedModule):
            del sys.modules[name]


class ServedModule(ModuleType):
    """A module of 0.3, whose names are looked up at first use."""

    def __getattr__(self, name: str) -> Any:
        module = self.__name__
        if name in HERE[module]:
            try:
                value = getattr(_home(HERE[module][name], f"{module}.{name}"), name)
            except (AttributeError, MissingDependencyError) as error:
                # As in agl_core: `from package import name` shows what to install, and hasattr()
                # knows no other error than this one.
                if sys._getframe(1).f_code.co_name == "_handle_fromlist":
                    raise MissingDependencyError(str(error)) from error
                raise AttributeError(str(error), name=name) from error
        elif f"{module}.{name}" in HERE:  # 0.3 imports all its modules with the package
            return import_module(f"{module}.{name}")
        elif name == "__all__":
            return _installed_names(module)
        elif name == "__version__" and module == PACKAGE:
            return VERSION
        elif name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        else:
            raise AttributeError(_not_here(f"{module}.{name}"))
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds a submodule in its parent. A function of the same name, such as
        # emitter.reward, must stay there, as in 0.3.
        if not (isinstance(value, ServedModule) and name in HERE[self.__name__]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *HERE[self.__name__]})


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        if fullname in HERE:
            # With a path, every module is a package: `from package import name` then asks this
            # finder for a name that is missing, and the error below replaces Python's own.
            return ModuleSpec(fullname, self, origin="agl_legacy", is_package=True)
        raise NotHereError(_not_here(fullname))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ServedModule(spec.name, f"``{spec.name}`` of agent-lightning {VERSION}, on agl.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: names are looked up at first use."""


_finder = _Finder()


def _home(module: str, name: str) -> ModuleType:
    """Import the module of agl that has a name of 0.3; say what to install if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise missing_package(name, package.replace("_", "-")) from error


def _not_here(name: str) -> str:
    return f"{name} is not part of agl; see {PAGE}#{section_of(name)}"


def _installed_names(module: str) -> list[str]:
    """Return what ``import *`` takes: names whose package is installed."""
    names: list[str] = []
    for name in HERE[module]:
        try:
            getattr(sys.modules[module], name)
        except AttributeError:  # its package is not installed
            continue
        names.append(name)
    return names
