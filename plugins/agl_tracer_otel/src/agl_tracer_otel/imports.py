"""Calls a function when a library is imported, without importing the library.

Instrumenting a library requires importing it, and an agent framework takes seconds to import;
agents that use another framework should not wait for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def on_import(names: Iterable[str], then: Callable[[str], None]) -> Generator[None]:
    """Call ``then`` once for each of the modules ``names``, within a ``with`` block.

    For modules that are already imported the call is immediate, and for those that another thread
    imports now it waits for that thread; for others it follows their import, on the importing
    thread. After the block, Python's import system is unchanged.
    """
    finder = _Finder(set(names), then)
    sys.meta_path.insert(0, finder)
    try:
        for name in sorted(finder.waiting):
            if _initializing(name):
                # Another thread began before the finder was installed: this waits for it.
                with suppress(Exception):  # that thread gets the error of the import
                    import_module(name)
            if _initializing(name) is False:  # True: this thread imports it
                finder.arrived(name)
        yield
    finally:
        sys.meta_path.remove(finder)


def _initializing(name: str) -> bool | None:
    """Return whether a module is being imported; None if nothing has imported it."""
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", None)


class _Finder(MetaPathFinder):
    def __init__(self, waiting: set[str], then: Callable[[str], None]) -> None:
        self.waiting = waiting
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _TellingLoader(spec.loader, lambda: self.arrived(fullname))
                return spec
        return None

    def arrived(self, name: str) -> None:
        if name in self.waiting:
            self.waiting.discard(name)
            self._then(name)


class _TellingLoader(Loader):
    """Delegates to another loader, restores that loader on the module, and calls ``then``."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
