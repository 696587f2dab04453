"""A registry of the usual components and those that a test adds, without discovery.

::

    def test_it_is_built_by_name(agl_registry):
        agl_registry.add("store.mine", "agl_store_mine.hooks")
        store = build_component("store", {"type": "mine"})
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from typing import Final, NoReturn

import pytest

from agl_core.plugins import (
    ENTRY_POINT_GROUP,
    PluginRecord,
    Registry,
    add_listener,
    get_registry,
    reset_listeners,
    reset_registry,
    split_name,
)

__all__ = ["Plugins", "agl_registry"]

USUAL: Final = (
    "agl-algorithm-kit",
    "agl-cli-kit",
    "agl-exec-shm",
    "agl-runner",
    "agl-store-memory",
    "agl-tracer-dummy",
    "agl-tracer-otel",
)
"""Distributions whose plugins a run needs, or takes by default."""


class Plugins:
    """The plugins that count as installed during a test: at first only the usual ones."""

    def __init__(self) -> None:
        self.records = [
            self._record(entry.name, entry.value, dist.name, dist.version)
            for dist in map(distribution, USUAL)
            for entry in dist.entry_points.select(group=ENTRY_POINT_GROUP)
        ]
        reset_registry(Registry(self.records))

    def add(self, name: str, module: str, *, dist: str = "agl-under-test") -> PluginRecord:
        """Add a plugin without installing it.

        Args:
            name: Name of its entry point, ``kind.name``.
            module: Its hook module.
            dist: Distribution that messages name.

        Raises:
            ValueError: The entry point's name is malformed.
        """
        record = self._record(name, module, dist, "0")
        if record.kind not in (kinds := get_registry().kinds):
            raise ValueError(f"entry point {name!r} names no kind (kinds: {', '.join(kinds)})")
        self.records.append(record)
        reset_registry(Registry(self.records))
        reset_listeners()
        return record

    @staticmethod
    def _record(name: str, module: str, dist: str, version: str) -> PluginRecord:
        kind, bare, problem = split_name(name)
        if problem:
            raise ValueError(problem)
        return PluginRecord(kind, bare, dist, version, "ok", "", module)

    @staticmethod
    def listen(listener: object) -> str:
        """Add a listener to the events of a run; it is removed when the test ends."""
        return add_listener(listener)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("this test uses agl_registry, so it must not look at what is installed")


@pytest.fixture
def agl_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    """The plugins of this process for one test; real discovery fails the test."""
    monkeypatch.setattr(Registry, "discover", _refuse)
    reset_listeners()
    yield Plugins()
    reset_registry()
    reset_listeners()
