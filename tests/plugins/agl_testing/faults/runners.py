"""Faults of runners."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from agl_core.store import InterceptedStore
from agl_runner import LitAgentRunner
from agl_tracer_otel import OtelTracer


class Runner(LitAgentRunner):
    SUITE, FIXTURE, FLAGS = "RunnerSuite", "runner", ()
    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(
            OtelTracer(),
            concurrency=1,
            heartbeat_interval=0.05,
            interval_jitter=0,
            cancel_grace=0.5,
        )


GOOD = (Runner,)


class _Through(Runner):
    """A runner between which and the store ``changes`` stands."""

    class changes(InterceptedStore):
        pass

    def init_worker(self, worker_id, store, **kwargs: Any):
        super().init_worker(worker_id, self.changes(store), **kwargs)


class _Agent(Runner):
    """A runner that calls ``work`` instead of the agent's method."""

    def init(self, agent, **kwargs: Any):
        plain, runner = agent.rollout, self
        agent.rollout = lambda task, resources, rollout: runner.work(
            plain, task, resources, rollout
        )
        super().init(agent, **kwargs)

    def work(self, plain, task, resources, rollout):
        return plain(task, resources, rollout)


class SwallowsSystemExit(_Agent):
    """An agent that calls `sys.exit` has succeeded."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    def work(self, plain, task, resources, rollout):
        with contextlib.suppress(SystemExit):
            return plain(task, resources, rollout)


class EndsWithSystemExit(_Agent):
    """An agent that calls `sys.exit` ends the runner as well."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    async def iter(self, *, event=None, until_idle=False):
        try:
            await super().iter(event=event, until_idle=until_idle)
        finally:
            if self.exited:
                raise SystemExit(3)

    exited = False

    def work(self, plain, task, resources, rollout):
        try:
            return plain(task, resources, rollout)
        except SystemExit:
            self.exited = True
            raise


class SwallowsErrors(_Agent):
    """An agent that raises has succeeded without a reward."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    def work(self, plain, task, resources, rollout):
        with contextlib.suppress(Exception):
            return plain(task, resources, rollout)


class TurnsErrorsIntoAnother(_Agent):
    """Every error of the agent is a RuntimeError that says nothing."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    def work(self, plain, task, resources, rollout):
        try:
            return plain(task, resources, rollout)
        except Exception:
            raise RuntimeError("the agent failed") from None


class RunsATaskTwice(_Agent):
    """A task that failed is tried again, whatever its config says."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    def work(self, plain, task, resources, rollout):
        try:
            return plain(task, resources, rollout)
        except ValueError:
            return plain(task, resources, rollout)


class LosesRewardsOfZero(_Agent):
    """A reward of 0 is not stored."""

    CAUGHT_BY = "test_the_reward_is_stored_before_the_attempt_ends"

    def work(self, plain, task, resources, rollout):
        return plain(task, resources, rollout) or None


class GivesTheTaskAsText(_Agent):
    """The agent gets the text of its task."""

    CAUGHT_BY = "test_the_queue_is_run_in_order_until_it_is_idle"

    def work(self, plain, task, resources, rollout):
        return plain(str(task), resources, rollout)


class GivesNoResources(_Agent):
    """The agent gets no resources."""

    CAUGHT_BY = "test_the_queue_is_run_in_order_until_it_is_idle"

    def work(self, plain, task, resources, rollout):
        return plain(task, {}, rollout)


class EndsAfterAFailure(Runner):
    """A failed rollout ends the iteration."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    class Failed(Exception):
        pass

    async def iter(self, *, event=None, until_idle=False):
        with contextlib.suppress(self.Failed):
            await super().iter(event=event, until_idle=until_idle)

    async def _run_claimed(self, parts, rollout, *args: Any):
        await super()._run_claimed(parts, rollout, *args)
        ended = await parts.workplace.store.get_rollout_by_id(rollout.rollout_id)
        if ended is None or ended.status == "failed":
            raise self.Failed


class IgnoresTheStop(Runner):
    """The stop event does not end the iteration."""

    CAUGHT_BY = "test_a_sync_agent_leaves_the_loop_free"
    SLOW = True

    async def iter(self, *, event=None, until_idle=False):
        await super().iter(until_idle=until_idle)


class EndsTooSoon(Runner):
    """With `until_idle` it runs one rollout."""

    CAUGHT_BY = "test_the_queue_is_run_in_order_until_it_is_idle"

    async def iter(self, *, event=None, until_idle=False):
        if not until_idle:
            return await super().iter(event=event)
        self.max_rollouts = 1
        await super().iter(event=event, until_idle=True)
        return None


class SendsNoHeartbeats(Runner):
    """A worker is never heard of, and a cancelled agent goes on."""

    CAUGHT_BY = "test_a_worker_is_heard_of_and_learns_of_a_cancellation"
    SLOW = True

    def __init__(self) -> None:
        super().__init__()
        self.heartbeat_interval = 0


class StoresTheEndBeforeTheSpans(_Through):
    """An attempt has ended while its spans are still on their way."""

    CAUGHT_BY = "test_the_reward_is_stored_before_the_attempt_ends"

    class changes(InterceptedStore):
        async def add_many_spans(self, spans):
            inner = super().add_many_spans

            async def later():
                await asyncio.sleep(0.5)
                await inner(spans)

            self.later = asyncio.ensure_future(later())
            return list(spans)


class ForgetsTheError(_Through):
    """A failed attempt does not say why."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    class changes(InterceptedStore):
        async def update_attempt(self, rollout_id, attempt_id, **changes):
            changes.pop("metadata", None)
            return await super().update_attempt(rollout_id, attempt_id, **changes)


class CallsNoHooksAfterAnError(_Agent):
    """Hooks hear of the end of successes only."""

    CAUGHT_BY = "test_an_agent_that_fails_has_failed_once_and_the_next_task_runs"

    failed = False

    def init(self, agent, *, hooks=None, **kwargs: Any):
        for hook in hooks or ():
            plain = hook.on_rollout_end

            async def on_rollout_end(plain=plain, **given):
                if not self.failed:
                    await plain(**given)

            hook.on_rollout_end = on_rollout_end
        super().init(agent, hooks=hooks, **kwargs)

    def work(self, plain, task, resources, rollout):
        self.failed = True
        result = plain(task, resources, rollout)
        self.failed = False
        return result


class BlocksItsLoop(_Agent):
    """A sync agent runs on the event loop."""

    CAUGHT_BY = "test_a_sync_agent_leaves_the_loop_free"

    def init(self, agent, **kwargs: Any):
        super().init(agent, **kwargs)
        plain = agent.rollout

        async def rollout_async(task, resources, rollout):
            return plain(task, resources, rollout)

        agent.rollout_async = rollout_async
        agent.is_async = lambda: True


class SleepsBetweenRollouts(Runner):
    """It claims new work once in three seconds."""

    CAUGHT_BY = "test_new_work_is_claimed_at_once_and_an_idle_runner_stops_at_once"

    async def iter(self, *, event=None, until_idle=False):
        if until_idle:
            return await super().iter(event=event, until_idle=True)
        while event is None or not event.is_set():
            await super().iter(event=event, until_idle=True)
            await asyncio.sleep(3)
        return None


class StepForgetsTheReward(Runner):
    """The rollout that `step` returns is that of its start."""

    CAUGHT_BY = "test_a_step_returns_the_finished_rollout"

    async def step(self, input, **options: Any):
        rollout = await super().step(input, **options)
        return rollout.model_copy(update={"status": "running", "end_time": None})


class StepHidesTheError(Runner):
    """`step` returns a failed rollout instead of raising."""

    CAUGHT_BY = "test_a_step_raises_the_error_of_its_agent"

    async def step(self, input, **options: Any):
        try:
            return await super().step(input, **options)
        except ArithmeticError:
            time.sleep(0)
            assert self._parts is not None
            (*_, last) = (await self._parts.workplace.store.query_rollouts()).items
            return last
