"""One attempt, from its claim to its final status.

The order: hook ``on_rollout_start``, resources, trace context, hook ``on_trace_start``, the agent,
hook ``on_trace_end``, end of the trace context, the agent's result, hook ``on_rollout_end``, final
status. The final status is always written: ``succeeded`` only if the agent returned and its result
was stored, ``timeout`` if it exceeded the rollout's ``timeout_seconds``, ``failed`` otherwise, with
the error in the attempt's metadata
(:func:`~agl_runner.final_status.error_metadata`).

An attempt runs in its own task. :meth:`~AttemptRun.stop` ends it early without a cancellation of
that task, so the trace is still flushed and the status written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agl_core.agent import call_models_directly
from agl_core.errors import (
    AgentCancelledError,
    AgentError,
    AgentTimeoutError,
    ResourceMissingError,
)
from agl_core.known_errors import KnownErrors
from agl_core.proxy import ProxyMove, proxy_move
from agl_core.runner import call_replayer
from agl_core.status import INFRASTRUCTURE, INFRASTRUCTURE_FAILURES, infrastructure_failures
from agl_core.sync_calls import Outcome, SyncCalls, end_if_forked
from agl_runner.final_status import write_final_status
from agl_runner.infrastructure import (
    find_away,
    find_move,
    is_the_agents,
    lost_connection,
    proxies_of,
    wait_for,
    was_reported,
)
from agl_runner.keys import with_keys
from agl_runner.results import store_result
from agl_runner.snapshots import Snapshots

if TYPE_CHECKING:
    from agl_core.agent import LitAgent
    from agl_core.proxy import LLMProxy
    from agl_core.runner import Hooks, Runner
    from agl_core.store import LightningStore
    from agl_core.tracer import Tracer
    from agl_core.types import AttemptedRollout, AttemptStatus, NamedResources, Span

logger = logging.getLogger(__name__)

_BEATS: Final = 3
"""Heartbeats of a waiting attempt within the time after which it counts as unresponsive."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """The parts that all attempts of a worker share.

    Attributes:
        runner: The runner, for hooks.
        agent: The agent that runs the tasks.
        hooks: Users' callbacks.
        tracer: Records the agents' traces.
        store: Stores spans, results and final statuses.
        worker_id: The worker's id in the store.
        sync_calls: Threads for sync agents.
        cancel_grace: Seconds that an async agent gets to end after it was cancelled.
        finish_timeout: Seconds for writing the final status, retries included; and before that, for
            storing the result while the store is full.
        errors: The errors whose traceback is in the log.
        llm_proxy: The run's proxy, which issues the agents' keys; None if there is none, or if it
            runs in another process.
    """

    runner: Runner[Any]
    agent: LitAgent[Any]
    hooks: Hooks
    tracer: Tracer
    store: LightningStore
    worker_id: str
    sync_calls: SyncCalls
    cancel_grace: float
    finish_timeout: float
    errors: KnownErrors
    llm_proxy: LLMProxy | None = None


class AttemptRun:
    """Runs the agent on one claimed attempt, once.

    Args:
        place: The worker's shared parts.
        rollout: The claimed rollout with its attempt.
        snapshots: Reads the resources; shared with the attempts that were claimed with this one.

    Attributes:
        place: The worker's shared parts.
        rollout: The claimed rollout with its attempt.
        spans: The stored spans; complete when the run has ended.
        status: The final status that was written; None if the write failed, or if the watchdog had
            already ended the attempt.
        error: The error that failed the attempt.
        duration: Seconds from the start to the end of the agent.
    """

    def __init__(
        self, place: Workplace, rollout: AttemptedRollout, snapshots: Snapshots | None = None
    ) -> None:
        self.rollout = rollout
        self._snapshots = snapshots or Snapshots(place.store)
        self.spans: list[Span] = []
        self.status: AttemptStatus | None = None
        self.error: BaseException | None = None
        self.duration = 0.0
        self.place = place
        self._resources: NamedResources = {}
        self._earlier_failures = 0
        self._began = time.monotonic()
        loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[AgentError] = loop.create_future()
        self._move = ProxyMove(partial(loop.call_soon_threadsafe, self._look_for_move))
        self._look: asyncio.Task[None] | None = None

    def stop(self, reason: AgentError) -> None:
        """Make the attempt fail with ``reason`` soon. Must be called on the attempt's loop."""
        if not self._stop.done():
            self._stop.set_result(reason)

    async def run(self) -> None:
        """Run the attempt. Never raises: the error is in :attr:`error`."""
        place = self.place
        try:
            await place.hooks.call(
                "on_rollout_start", agent=place.agent, runner=place.runner, rollout=self.rollout
            )
            await self._count_earlier_failures()
            self._resources = await self._find_resources()
            async with AsyncExitStack() as stack:
                agent = await self._agent(stack)
                result = await self._trace(agent, self._resources)
            self.spans += await store_result(
                result, self.rollout, place.store, timeout=place.finish_timeout
            )
        except BaseException as error:  # a cancellation too: the status must be written
            self.error = error
        try:
            await place.hooks.call(
                "on_rollout_end",
                agent=place.agent,
                runner=place.runner,
                rollout=self.rollout,
                spans=self.spans,
            )
        except BaseException as error:
            self.error = self.error or error
        try:
            facts = await self._infrastructure_facts()
        except Exception:
            logger.exception("%s: what failed it is not known", self.rollout.rollout_id)
            facts = {}
        try:
            self.status = await write_final_status(
                place.store, self.rollout, self.error, facts, timeout=place.finish_timeout
            )
        except Exception as error:
            logger.exception("%s: the final status is not written", self.rollout.rollout_id)
            self.error = self.error or error
        finally:
            self._move.set()  # it refers to this run: spans in a cycle of references stay for long
            if self._look is not None:
                self._look.cancel()

    async def _agent(self, stack: AsyncExitStack) -> LitAgent[Any]:
        """Return the agent to run; the replayer's, in the stack's context, for a replay.

        A stop ends it early: replays of some agents wait for each other.
        """
        place, rollout = self.place, self.rollout
        if rollout.config.replay is None:
            return place.agent
        replayed = call_replayer(
            "replay_attempt", agent=place.agent, rollout=rollout, store=place.store
        )
        waiting = True

        def end(_: object) -> None:
            if waiting:
                limit.reschedule(asyncio.get_running_loop().time())

        try:
            async with asyncio.timeout(None) as limit:
                self._stop.add_done_callback(end)
                try:
                    return await stack.enter_async_context(replayed)
                finally:
                    waiting = False
                    self._stop.remove_done_callback(end)
        except TimeoutError:
            if limit.expired():
                raise self._stop.result() from None
            raise

    async def _count_earlier_failures(self) -> None:
        """Note in the attempt how many earlier ones the infrastructure failed.

        They do not count towards ``max_attempts``, also if the watchdog ends this attempt.
        """
        store, own = self.place.store, self.rollout.attempt
        if own.sequence_id == 1:
            return
        attempts = await store.query_attempts(self.rollout.rollout_id)
        earlier = [one for one in attempts if one.sequence_id < own.sequence_id]
        self._earlier_failures = max(map(infrastructure_failures, earlier), default=0)
        if self._earlier_failures:
            facts = {**(own.metadata or {}), INFRASTRUCTURE_FAILURES: self._earlier_failures}
            await store.update_attempt(self.rollout.rollout_id, own.attempt_id, metadata=facts)

    async def _infrastructure_facts(self) -> dict[str, Any]:
        """Return what an attempt's metadata says if the infrastructure failed it.

        Returns when the proxy that was away serves again, so that the next attempt finds it.
        """
        error = self.error
        if error is None or is_the_agents(error):
            return {}
        what = was_reported(error)
        if what is None and lost_connection(error):
            away = asyncio.create_task(self._wait_for_proxy())
            try:
                await asyncio.wait((away, self._stop), return_when=asyncio.FIRST_COMPLETED)
                what = "proxy" if away.done() and away.result() else None
            except asyncio.CancelledError as cancelled:
                # The canceller waits for the attempt's task to end, which writes the status.
                self.error = cancelled
            finally:
                away.cancel()
        if what is None:
            return {}
        logger.warning(
            "%s: the %s failed this attempt, not the agent: %r",
            self.rollout.rollout_id,
            what,
            error,
        )
        facts = {INFRASTRUCTURE: what, INFRASTRUCTURE_FAILURES: self._earlier_failures + 1}
        return facts if self.place.agent.repeatable else {**facts, "repeatable": False}

    async def _wait_for_proxy(self) -> bool:
        """Return whether a proxy of the agent was away, after it serves again or has moved."""
        url = await find_away(proxies_of(self._resources), self._began)
        if url is None:
            return False
        alive = asyncio.create_task(self._show_alive())
        try:
            await wait_for(url, self._move)
        finally:
            alive.cancel()
        return True

    async def _show_alive(self) -> None:
        """Keep the watchdog from ending an attempt that waits: no span of it arrives."""
        seconds = self.rollout.config.unresponsive_seconds
        if seconds is None:
            return
        store, ids = self.place.store, (self.rollout.rollout_id, self.rollout.attempt.attempt_id)
        while True:
            try:
                await store.update_attempt(*ids, last_heartbeat_time=await store.now())
            except Exception as error:
                logger.warning("%s: a heartbeat failed: %r", self.rollout.rollout_id, error)
            await asyncio.sleep(seconds / _BEATS)

    def _look_for_move(self) -> None:
        """Find out whether the proxy that a model call waits for is elsewhere now."""
        if self._move.has_happened():
            return  # the attempt has ended meanwhile
        proxies = proxies_of(self._resources)
        looking = find_move(self.place.store, self.rollout.resources_id, proxies, self._move)
        self._look = asyncio.create_task(looking)

    async def _find_resources(self) -> NamedResources:
        resources_id = self.rollout.resources_id
        resources = await self._snapshots.get(resources_id)
        if resources is None:
            if resources_id is None:
                return _NoResources()
            raise ResourceMissingError(
                f"the store has no resources {resources_id!r}, which the rollout names"
            )
        call_models_directly(resources)
        return with_keys(resources, self.rollout, self.place.store, self.place.llm_proxy)

    async def _trace(self, agent: LitAgent[Any], resources: NamedResources) -> Any:
        place, rollout = self.place, self.rollout
        opened = False
        try:
            async with place.tracer.trace_context(
                name=rollout.rollout_id,
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
            ):
                opened = True
                about: Final = {
                    "agent": place.agent,
                    "runner": place.runner,
                    "tracer": place.tracer,
                    "rollout": rollout,
                }
                await place.hooks.call("on_trace_start", **about)
                started = time.monotonic()
                value, error = await self._run_agent(agent, resources)
                self.duration = time.monotonic() - started
                await place.hooks.call("on_trace_end", **about, error=error)
                if error is not None:
                    raise error
                return value
        finally:
            if opened:  # otherwise the last trace is that of another attempt
                self.spans += place.tracer.get_last_trace()

    async def _run_agent(self, agent: LitAgent[Any], resources: NamedResources) -> Outcome:
        """Run the agent until it returns, is stopped, or exceeds its timeout."""
        if self._stop.done():
            return Outcome(error=self._stop.result())
        proxy_move.set(self._move)  # the calls' context is a copy of the attempt's
        call = self._call_agent(agent, resources)
        seconds = self.rollout.config.timeout_seconds
        try:
            await asyncio.wait(
                (call, self._stop), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if call.done():
                return _without_cancellation(call.result())
            if self._stop.done():
                reason = self._stop.result()
            else:
                reason = AgentTimeoutError(
                    f"the agent ran longer than the rollout's timeout of {seconds:g} s"
                )
        except asyncio.CancelledError as error:  # the loop is being torn down
            return Outcome(error=error)
        finally:
            if not call.done():
                await self._give_up(call)
        return Outcome(error=reason)

    def _call_agent(
        self, agent: LitAgent[Any], resources: NamedResources
    ) -> asyncio.Future[Outcome]:
        rollout = self.rollout
        train = rollout.mode == "train"
        if agent.is_async():
            method = agent.training_rollout_async if train else agent.validation_rollout_async
            return asyncio.create_task(
                _outcome(method(rollout.input, resources=resources, rollout=rollout))
            )
        method = agent.training_rollout if train else agent.validation_rollout
        return self.place.sync_calls.submit(
            partial(method, rollout.input, resources=resources, rollout=rollout)
        )

    async def _give_up(self, call: asyncio.Future[Outcome]) -> None:
        """Cancel a call; a thread is abandoned, a task gets some time to end."""
        call.cancel()
        done, _ = await asyncio.wait((call,), timeout=self.place.cancel_grace)
        if not done:
            _left_behind.add(call)
            call.add_done_callback(_left_behind.discard)
            logger.warning(
                "%s: the agent does not end although it was cancelled; it is abandoned",
                self.rollout.rollout_id,
            )


class _NoResources(dict[str, Any]):
    """The resources of a rollout that names none, in a store without any."""

    def __missing__(self, name: str) -> Any:
        raise ResourceMissingError(
            f"the agent asks for the resource {name!r}, and the store has none; add it "
            "(Trainer(initial_resources=…), store.add_resources or step(resources=…))"
        )


# The event loop keeps only weak references to its tasks.
_left_behind: set[asyncio.Future[Outcome]] = set()


async def _outcome(call: Coroutine[Any, Any, Any]) -> Outcome:
    pid = os.getpid()
    try:
        outcome = Outcome(await call)
    except BaseException as error:
        outcome = Outcome(error=error)
    end_if_forked(pid, outcome)
    return outcome


def _without_cancellation(outcome: Outcome) -> Outcome:
    """Replace a CancelledError that the agent itself raised by a plain error."""
    if not isinstance(outcome.error, asyncio.CancelledError):
        return outcome
    error = AgentCancelledError("the agent raised a CancelledError itself")
    error.__cause__ = outcome.error
    return Outcome(error=error)
