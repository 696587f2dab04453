"""The port to the server under test, the base of its tests, and writers that count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from agl_core.errors import StoreUnavailableError
from agl_core.store import LightningStore
from agl_testing.samples import span_of
from agl_testing.suite import Suite

__all__ = ["DatabaseFaultTests", "DatabaseServer", "Writers", "opened"]

RECOVERY_SECONDS = 60.0
"""A store that is not connected again by then does not recover."""


class DatabaseServer(Protocol):
    """A server on this machine that a test may kill. It runs when a test gets it, without data.

    What it has acknowledged outlives :meth:`kill`.
    """

    @property
    def name(self) -> str:
        """Name of the server in the store's errors, e.g. ``PostgreSQL at 127.0.0.1:5432``."""
        ...

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1."""
        ...

    def connect(self, *, port: int | None = None, timeout_seconds: float = 10) -> LightningStore:
        """Open a store over the test's data. The server may be down.

        Args:
            port: Connect to this port of 127.0.0.1, where a relay listens.
            timeout_seconds: How long the store waits for the server.
        """
        ...

    def kill(self) -> None:
        """End all processes of the server at once."""
        ...

    def start(self) -> None:
        """Start it again on its data; return when it accepts connections."""
        ...


class DatabaseFaultTests(Suite):
    """Base of the tests of failing servers. The author supplies a fixture ``database``."""

    suite_name = "database faults"

    @pytest.fixture
    def database(self) -> DatabaseServer:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `database`")


@asynccontextmanager
async def opened(store: LightningStore) -> AsyncIterator[LightningStore]:
    """Close a store after a ``with`` block."""
    try:
        yield store
    finally:
        await store.close()


class Writers:
    """Tasks that write without a pause and keep what was acknowledged.

    Attributes:
        kept: Ids of the rollouts that were stored, each with a span.
        refused: Number of calls that failed because the server was down.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self.kept: list[str] = []
        self.refused = 0
        self._changed = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._write()) for _ in range(4)]

    async def _write(self) -> None:
        while True:
            try:
                started = await self.store.start_rollout(len(self.kept))
                await self.store.add_span(span_of(started))
            except StoreUnavailableError:
                self.refused += 1
                await asyncio.sleep(0.02)
            else:
                self.kept.append(started.rollout_id)
            self._changed.set()

    async def until(self, acknowledged: int) -> None:
        """Return when so many rollouts are stored."""
        await self._wait(lambda: len(self.kept) >= acknowledged)

    async def until_refused(self) -> None:
        """Return when another call has failed."""
        seen = self.refused
        await self._wait(lambda: self.refused > seen)

    async def _wait(self, reached: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(RECOVERY_SECONDS):
                while not reached():
                    await self._change()
        except TimeoutError:
            raise AssertionError(
                f"nothing more in {RECOVERY_SECONDS:g} s after {len(self.kept)} rollouts were "
                f"stored and {self.refused} calls refused"
            ) from None

    async def _change(self) -> None:
        self._changed.clear()
        changed: asyncio.Task[Any] = asyncio.ensure_future(self._changed.wait())
        done, _ = await asyncio.wait({changed, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        for task in done:
            await task  # an error of a writer is one of the test

    async def check(self) -> None:
        """Stop, and find all that was acknowledged in the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for rollout_id in self.kept:
            rollout = await self.store.get_rollout_by_id(rollout_id)
            assert rollout is not None
            assert rollout.status == "running"
            assert (await self.store.query_spans(rollout_id)).total == 1
