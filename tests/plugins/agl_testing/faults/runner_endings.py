"""Faults of runners: how agents end, async ones too."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from faults.runners import Runner

GOOD = ()


class _Async(Runner):
    """A runner that calls ``work`` instead of an async agent's method."""

    def init(self, agent, **kwargs: Any):
        if agent.is_async():
            agent.rollout_async = self.calling(agent.rollout_async)
        super().init(agent, **kwargs)

    def calling(self, plain):
        async def rollout_async(task, resources, rollout):
            return await self.work(plain(task, resources, rollout))

        return rollout_async

    async def work(self, call):
        return await call


class SwallowsSystemExitOfAsyncAgents(_Async):
    """An async agent that calls `sys.exit` has succeeded."""

    CAUGHT_BY = "test_an_async_agent_that_fails_has_failed_and_the_next_task_runs"

    async def work(self, call):
        with contextlib.suppress(SystemExit):
            return await call


class SwallowsErrorsOfAsyncAgents(_Async):
    """An async agent that raises has succeeded without a reward."""

    CAUGHT_BY = "test_an_async_agent_that_fails_has_failed_and_the_next_task_runs"

    async def work(self, call):
        with contextlib.suppress(Exception):
            return await call


class TurnsErrorsOfAsyncAgentsIntoAnother(_Async):
    """Every error of an async agent is a RuntimeError that says nothing."""

    CAUGHT_BY = "test_an_async_agent_that_fails_has_failed_and_the_next_task_runs"

    async def work(self, call):
        try:
            return await call
        except Exception:
            raise RuntimeError("the agent failed") from None


class LetsAgentsGoOnAfterTheirTimeout(_Async):
    """An agent that was timed out works on, and costs."""

    CAUGHT_BY = "test_an_agent_is_stopped_at_its_timeout"
    SLOW = True

    async def work(self, call):
        self.kept = asyncio.ensure_future(call)
        return await asyncio.shield(self.kept)


class LeavesAnAttemptOpen(Runner):
    """A runner that is cancelled leaves its attempt as it is."""

    CAUGHT_BY = "test_a_runner_that_is_cancelled_leaves_no_attempt_open"

    async def _end_soon(self, run, task):
        await asyncio.get_running_loop().create_future()


class SwallowsItsCancellation(Runner):
    """A runner that is cancelled returns as if it had finished."""

    CAUGHT_BY = "test_a_runner_that_is_cancelled_leaves_no_attempt_open"

    async def iter(self, *, event=None, until_idle=False):
        with contextlib.suppress(asyncio.CancelledError):
            await super().iter(event=event, until_idle=until_idle)


class GoesOnAfterCtrlC(Runner):
    """KeyboardInterrupt in an agent is a failed rollout, and the next one runs."""

    CAUGHT_BY = "test_ctrl_c_in_an_agent_ends_the_runner"

    async def _run_claimed(self, *args: Any):
        with contextlib.suppress(KeyboardInterrupt):
            await super()._run_claimed(*args)


class TakesCtrlCForTheEnd(Runner):
    """After KeyboardInterrupt in an agent it returns as if the queue were empty."""

    CAUGHT_BY = "test_ctrl_c_in_an_agent_ends_the_runner"

    async def iter(self, *, event=None, until_idle=False):
        with contextlib.suppress(KeyboardInterrupt):
            await super().iter(event=event, until_idle=until_idle)
