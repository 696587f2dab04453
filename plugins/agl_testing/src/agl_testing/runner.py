"""The conformance suite for runners.

::

    class TestMyRunner(RunnerSuite):
        @pytest.fixture
        def runner(self):
            return MyRunner(heartbeat_interval=0.1)
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from agl_core.agent import LitAgent
from agl_core.emitter import emit_message, find_final_reward
from agl_core.execution import ThreadingEvent
from agl_core.runner import Hook, Runner
from agl_core.store import LightningStore
from agl_core.types import PromptTemplate, RolloutConfig
from agl_store_memory import InMemoryLightningStore
from agl_testing.suite import Suite

__all__ = ["RunnerSuite"]

SOON = 2.0
"""Seconds within which a runner claims work that is there, and ends when it is told to."""
BOUND = 20.0
"""Seconds within which everything else must have happened."""

TASKS: list[Any] = [0, {"q": [1, None], "deep": {"x": 1.5}}, "text \u2603", [1, 2], 7.5]

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


class RunnerSuite(Suite):
    """Tests the contract of runners.

    The author supplies a fixture ``runner``: a runner that is not initialised, runs one rollout at
    a time, records with a tracer, and sends heartbeats several times a second.
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

    async def test_it_can_be_pickled_before_use(self, runner: Runner[Any]):
        assert type(pickle.loads(pickle.dumps(runner))) is type(runner)

    async def test_the_queue_is_run_in_order_until_it_is_idle(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Agent(lambda task: 1.0)
        await prepare(runner_store)
        ids = [(await runner_store.enqueue_rollout(task)).rollout_id for task in TASKS]
        with runner.run_context(agent=agent, store=runner_store):
            await asyncio.wait_for(runner.iter(until_idle=True), BOUND)
        assert agent.seen == TASKS
        assert list(map(type, agent.seen)) == list(map(type, TASKS))
        assert agent.prompts == ["Answer."] * len(TASKS)
        for rollout_id in ids:
            rollout = await runner_store.get_rollout_by_id(rollout_id)
            attempts = await runner_store.query_attempts(rollout_id)
            assert rollout is not None
            assert (rollout.status, [a.status for a in attempts]) == ("succeeded", ["succeeded"])

    @pytest.mark.parametrize("reward", [0.0, -2.5, 1.0, None])
    async def test_the_reward_is_stored_before_the_attempt_ends(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, reward: float | None
    ):
        agent = Agent(lambda task: reward)
        async with self.running(runner, agent, runner_store):
            rollout_id = (await runner_store.enqueue_rollout("x")).rollout_id
            await ended(runner_store, rollout_id)
            # At once: an algorithm reads the spans as soon as the rollout has ended.
            spans = list(await runner_store.query_spans(rollout_id, "latest"))
        assert find_final_reward(spans) == reward
        assert any("task 'x'" in map(str, span.attributes.values()) for span in spans)

    @pytest.mark.parametrize("ending", ENDINGS, ids=lambda error: type(error).__name__)
    async def test_an_agent_that_fails_has_failed_once_and_the_next_task_runs(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, ending: BaseException
    ):
        def act(task: Any) -> float:
            if task == "bad":
                raise ending
            return 1.0

        agent, hook = Agent(act), Noting()
        async with self.running(runner, agent, runner_store, [hook]):
            bad = (await runner_store.enqueue_rollout("bad")).rollout_id
            good = (await runner_store.enqueue_rollout("good")).rollout_id
            await ended(runner_store, bad)
            await ended(runner_store, good)
        found = {r.rollout_id: r.status for r in await runner_store.query_rollouts()}
        assert found == {bad: "failed", good: "succeeded"}
        assert agent.seen == ["bad", "good"]
        attempt = await runner_store.get_latest_attempt(bad)
        assert attempt is not None
        said = str(attempt.metadata)
        assert type(ending).__name__ in said, "a failed attempt does not name its error"
        assert str(ending) in said
        spans = await runner_store.query_spans(bad)
        assert any("task 'bad'" in map(str, span.attributes.values()) for span in spans)
        assert hook.calls == ["rollout start", "trace start", "trace end", "rollout end"] * 2

    async def test_a_retry_is_an_attempt_of_its_own(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        tries: list[Any] = []

        def act(task: Any) -> float:
            tries.append(task)
            if len(tries) == 1:
                raise ValueError("the first try")
            return 0.5

        async with self.running(runner, Agent(act), runner_store):
            config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
            rollout = await runner_store.enqueue_rollout("x", config=config)
            await ended(runner_store, rollout.rollout_id)
        attempts = await runner_store.query_attempts(rollout.rollout_id)
        assert [attempt.status for attempt in attempts] == ["failed", "succeeded"]
        assert len(tries) == 2

    async def test_new_work_is_claimed_at_once_and_an_idle_runner_stops_at_once(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        start = time.monotonic()
        async with self.running(runner, Agent(lambda task: 1.0), runner_store):
            for task in range(3):
                await asyncio.sleep(0.1)  # it has nothing to do
                before = time.monotonic()
                rollout = await runner_store.enqueue_rollout(task)
                await ended(runner_store, rollout.rollout_id)
                assert time.monotonic() - before < SOON
            start = time.monotonic()
        assert time.monotonic() - start < SOON

    async def test_a_sync_agent_leaves_the_loop_free(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        release = threading.Event()

        def act(task: Any) -> float:
            return float(release.wait(BOUND / 2))

        async with self.running(runner, Agent(act), runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            # A store has no event for a claim, nor for a heartbeat.
            while await runner_store.get_latest_attempt(rollout.rollout_id) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            release.set()  # only a free loop comes here before the agent gives up
            await ended(runner_store, rollout.rollout_id)
            spans = list(await runner_store.query_spans(rollout.rollout_id))
        assert find_final_reward(spans) == 1.0, "the agent ran on the event loop and blocked it"

    async def test_a_worker_is_heard_of_and_learns_of_a_cancellation(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Hanging()
        async with self.running(runner, agent, runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            await asyncio.wait_for(agent.started.wait(), BOUND)
            async with asyncio.timeout(BOUND / 2):
                while not await self._heard(runner_store):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await runner_store.update_rollout(rollout.rollout_id, status="cancelled")
            await asyncio.wait_for(agent.ended.wait(), BOUND / 2)
        found = await runner_store.get_rollout_by_id(rollout.rollout_id)
        assert found is not None
        assert found.status == "cancelled"

    async def _heard(self, store: LightningStore) -> bool:
        return any(worker.last_heartbeat_time for worker in await store.query_workers())

    async def test_a_step_returns_the_finished_rollout(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Agent(lambda task: 0.25)
        prompt = PromptTemplate(template="Own.", engine="f-string")
        with runner.run_context(agent=agent, store=runner_store):
            done = await asyncio.wait_for(
                runner.step({"q": 1}, resources={"prompt": prompt}, mode="val"), BOUND
            )
        assert (done.status, done.input, done.mode) == ("succeeded", {"q": 1}, "val")
        assert done.end_time is not None
        assert agent.prompts == ["Own."]
        assert find_final_reward(list(await runner_store.query_spans(done.rollout_id))) == 0.25

    @pytest.mark.parametrize("ending", [*ENDINGS, ZeroDivisionError("no")], ids=repr)
    async def test_a_step_raises_the_error_of_its_agent(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, ending: BaseException
    ):
        def act(task: Any) -> float:
            raise ending

        seen: list[BaseException] = []
        await prepare(runner_store)
        with runner.run_context(agent=Agent(act), store=runner_store):
            try:
                await runner.step("x")  # in no task: SystemExit of a task ends the loop as well
            except BaseException as error:
                seen.append(error)
        assert seen, "a step whose agent failed returns as if all were well"
        assert (type(seen[0]), str(seen[0])) == (type(ending), str(ending))
        (rollout,) = await runner_store.query_rollouts()
        assert rollout.status == "failed"

    async def test_it_leaves_no_thread_behind(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        before = set(threading.enumerate())
        async with self.running(runner, Agent(lambda task: 1.0), runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            await ended(runner_store, rollout.rollout_id)
        started = [t for t in set(threading.enumerate()) - before if "asyncio" not in t.name]
        for thread in started:
            await asyncio.to_thread(thread.join, 5)
        assert not [thread for thread in started if thread.is_alive()]


async def prepare(store: LightningStore) -> None:
    """Add the resources that agents of a queue run with."""
    await store.add_resources({"prompt": PromptTemplate(template="Answer.", engine="f-string")})


async def ended(store: LightningStore, rollout_id: str) -> None:
    """Wait until a rollout has ended."""
    assert await store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=BOUND), "it hangs"
