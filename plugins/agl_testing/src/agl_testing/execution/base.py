"""Base of the parts of the execution suite: the fixtures and the flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest

from agl_core.execution import ExecutionStrategy
from agl_store_memory import InMemoryLightningStore
from agl_testing.suite import Suite

__all__ = ["ExecutionTests", "MakeStrategy", "WatchedStore"]

MakeStrategy = Callable[..., ExecutionStrategy]


class WatchedStore(InMemoryLightningStore):
    """A store that counts the calls of its watchdog, and those that close it."""

    scans = 0
    closed = 0

    async def close(self) -> None:
        self.closed += 1
        await super().close()

    async def run_watchdog(self) -> int:
        self.scans += 1
        return await super().run_watchdog()


class ExecutionTests(Suite):
    """Base of the execution suite's parts.

    The author supplies a fixture ``make_strategy``: a callable that takes ``n_runners`` and returns
    a strategy whose grace periods are about a second. A strategy that hangs also hangs its test:
    set a time limit per test (``timeout`` of pytest-timeout), as generated packages do.
    """

    suite_name = "execution"
    patience: ClassVar[float] = 30.0
    """Seconds within which every run must end. Set more if runners take seconds to start."""
    FLAGS: ClassVar[dict[str, str]] = {
        "watchdog": "the algorithm runs in this process, and the store's watchdog during the run",
        "fails_open_attempts": "open attempts of an abandoned worker are failed in the store",
    }

    @pytest.fixture
    def make_strategy(self) -> Callable[..., ExecutionStrategy]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `make_strategy`")

    @pytest.fixture
    def execution_store(self) -> WatchedStore:
        return WatchedStore(scan_debounce_seconds=0)
