from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.runner import Hook
from agl_core.store import LightningStore
from agl_core.types import Attempt
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer


class SyncAgent(LitAgent[Any]):
    def __init__(self, run: Callable[[Any], Any]) -> None:
        self.run = run

    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return self.run(task)


class AsyncAgent(LitAgent[Any]):
    def __init__(self, run: Callable[[Any], Awaitable[Any]]) -> None:
        self.run = run

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        return await self.run(task)


class Bench:
    """A store with (empty) resources, and runners on it that are torn down at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self.store: LightningStore = InMemoryLightningStore()
        self._stack = stack

    async def runner(
        self,
        run: Callable[[Any], Any],
        *,
        store: LightningStore | None = None,
        hooks: list[Hook] | None = None,
        worker_id: int = 0,
        **options: Any,
    ) -> LitAgentRunner[Any]:
        """Return a runner that runs one rollout at a time unless ``concurrency`` is given."""
        options = {"concurrency": 1, **options}
        if await self.store.get_latest_resources() is None:
            await self.store.add_resources({})
        agent = (AsyncAgent if inspect.iscoroutinefunction(run) else SyncAgent)(run)
        runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), **options)
        context = runner.run_context(
            agent=agent, store=store or self.store, hooks=hooks, worker_id=worker_id
        )
        return self._stack.enter_context(context)

    async def attempt(self, rollout_id: str | None = None) -> Attempt:
        """Return the latest attempt of a rollout, by default of the only rollout."""
        if rollout_id is None:
            (rollout,) = await self.store.query_rollouts()
            rollout_id = rollout.rollout_id
        attempt = await self.store.get_latest_attempt(rollout_id)
        assert attempt is not None
        return attempt

    async def statuses(self) -> list[str]:
        return [rollout.status for rollout in await self.store.query_rollouts()]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


class Hang:
    """An agent that hangs until released; sync and async."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.ended = threading.Event()

    def sync(self, task: Any) -> None:
        self.started.set()
        self.release.wait(30)
        self.ended.set()

    async def coroutine(self, task: Any) -> None:
        self.started.set()
        try:
            await asyncio.sleep(30)
        finally:
            self.ended.set()


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.release.set()


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Return a function that waits until a condition holds, up to 10 s."""
    return _until
