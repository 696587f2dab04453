"""Base of the parts of the runner suite: the fixtures, agents, and helpers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from agl_core.agent import LitAgent
from agl_core.emitter import emit_message
from agl_core.execution import ThreadingEvent
from agl_core.runner import Hook, Runner
from agl_core.store import LightningStore
from agl_core.types import PromptTemplate
from agl_store_memory import InMemoryLightningStore
from agl_testing.suite import Suite

__all__ = [
    "BOUND",
    "ENDINGS",
    "SOON",
    "Agent",
    "Hanging",
    "Noting",
    "RunnerTests",
    "ended",
    "prepare",
]

SOON = 2.0
"""Seconds within which a runner claims work that is there, and ends when it is told to."""
BOUND = 20.0
"""Seconds within which everything else must have happened."""

ENDINGS: list[BaseException] = [
    ValueError("the agent's own error"),
    SystemExit(3),
    TimeoutError("the model took too long"),
    ConnectionError("the tool is away"),
]


class Agent(LitAgent[Any]):
    """A sync agent that notes its tasks and does what a function says."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        super().__init__()
        self.act = act
        self.seen: list[Any] = []
        self.prompts: list[str] = []

    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        self.seen.append(task)
        self.prompts += [one.template for one in resources.values()]
        emit_message(f"task {task!r}")
        return self.act(task)


class Hanging(LitAgent[Any]):
    """An async agent that waits until it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class Noting(Hook):
    """Notes which callbacks were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def on_rollout_start(self, **given: Any) -> None:
        self.calls.append("rollout start")

    async def on_trace_start(self, **given: Any) -> None:
        self.calls.append("trace start")

    async def on_trace_end(self, **given: Any) -> None:
        self.calls.append("trace end")

    async def on_rollout_end(self, **given: Any) -> None:
        self.calls.append("rollout end")


class RunnerTests(Suite):
    """Base of the runner suite's parts.

    The author supplies a fixture ``runner``: a runner that is not initialised, runs one rollout at
    a time, records with a tracer, and sends heartbeats several times a second. It must run agents
    in this process: those of the suite hold locks, and note their calls in memory.
    """

    suite_name = "runner"
    FLAGS: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    def runner(self) -> Runner[Any]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `runner`")

    @pytest.fixture
    def runner_store(self) -> InMemoryLightningStore:
        return InMemoryLightningStore()

    @asynccontextmanager
    async def running(
        self,
        runner: Runner[Any],
        agent: LitAgent[Any],
        store: LightningStore,
        hooks: Sequence[Hook] = (),
    ) -> AsyncIterator[None]:
        """Let a runner take work from the queue for a block, and stop it."""
        await prepare(store)
        event = ThreadingEvent()
        with runner.run_context(agent=agent, store=store, hooks=hooks):
            work = asyncio.ensure_future(runner.iter(event=event))
            try:
                yield
            finally:
                event.set()
                ended, _ = await asyncio.wait({work}, timeout=BOUND)
                work.cancel()
            assert ended, "the stop event did not end the runner"
            work.result()


async def prepare(store: LightningStore) -> None:
    """Add the resources that agents of a queue run with."""
    await store.add_resources({"prompt": PromptTemplate(template="Answer.", engine="f-string")})


async def ended(store: LightningStore, rollout_id: str) -> None:
    """Wait until a rollout has ended."""
    assert await store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=BOUND), "it hangs"
