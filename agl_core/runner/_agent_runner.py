"""The runner of :class:`~agl_core.agent.LitAgent` agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

import anyio

from agl_core.errors import AgentCancelledError, InvalidArgumentError
from agl_core.runner._attempt import AttemptRun, Workplace
from agl_core.runner._base import Runner, worker_name
from agl_core.runner._claims import Claims
from agl_core.runner._final_status import CANCELLED_TIMEOUT
from agl_core.runner._heartbeat import Heartbeat, HeartbeatMode
from agl_core.runner._hooks import Hooks
from agl_core.runner._known_errors import KnownErrors
from agl_core.runner._oversight import Oversight
from agl_core.runner._reporting import Progress, report_end, report_start
from agl_core.runner._sync_calls import SyncCalls

if TYPE_CHECKING:
    from agl_core.agent import LitAgent
    from agl_core.proxy import LLMProxy
    from agl_core.runner._hooks import Hook
    from agl_core.store import LightningStore
    from agl_core.tracer import Tracer
    from agl_core.types import (
        AttemptedRollout,
        ExecutionEvent,
        NamedResources,
        Rollout,
        RolloutMode,
        TaskInput,
    )

T = TypeVar("T")

# Two cancel_grace periods for the agent to end, then the attempt itself is cancelled.
_GRACE_PERIODS: Final = 2


class LitAgentRunner(Runner[T]):
    """Runs rollouts one after another; each is traced, supervised, and its result stored.

    Async agents run on the event loop, sync agents in a worker thread that sees the same context
    variables. A stopped sync agent is abandoned in its thread, since Python cannot end a thread;
    it delays neither the next rollout nor the interpreter's exit.

    An agent is stopped when its rollout is cancelled or its attempt superseded (the heartbeat's
    reply shows this, so within ``heartbeat_interval``), when it exceeds the rollout's
    ``timeout_seconds`` (by the runner's own clock; the runner writes the status ``timeout``, as the
    store's watchdog would), and when the runner itself is cancelled.

    Concurrency: :meth:`step` may be called several times at once on one event loop; :meth:`iter`
    runs one rollout at a time.

    Args:
        tracer: Records the agents' traces; shared by all workers of the process.
        max_rollouts: Number of rollouts after which :meth:`iter` ends; None: no limit.
        poll_interval: Longest time in seconds that one call to the store waits for work, and the
            pause after a failed call. New work is claimed at once, not at the next poll.
        heartbeat_interval: Seconds between heartbeats; 0 or less: none, and then a runner does not
            notice that its rollout was cancelled.
        interval_jitter: Largest random change of these two intervals, in seconds.
        heartbeat_launch_mode: ``thread`` or ``asyncio``; see :mod:`agl_core.runner._heartbeat`.
        heartbeat_include_gpu: Whether heartbeats list the machine's GPUs.
        cancel_grace: Seconds that a stopped async agent gets to end before it is abandoned.
        finish_timeout: Seconds during which writing an attempt's final status is retried.

    Raises:
        InvalidArgumentError: A value is outside its domain.
    """

    injects: ClassVar[frozenset[str]] = frozenset({"tracer", "max_rollouts"})

    def __init__(
        self,
        tracer: Tracer,
        max_rollouts: int | None = None,
        poll_interval: float = 5.0,
        heartbeat_interval: float = 10.0,
        interval_jitter: float = 0.5,
        heartbeat_launch_mode: HeartbeatMode = "thread",
        heartbeat_include_gpu: bool = False,
        cancel_grace: float = 2.0,
        finish_timeout: float = 60.0,
    ) -> None:
        if max_rollouts is not None and (type(max_rollouts) is not int or max_rollouts < 0):
            raise InvalidArgumentError(
                f"max_rollouts is {max_rollouts!r}; it takes an integer that is not negative"
            )
        for name, seconds in (
            ("poll_interval", poll_interval),
            ("heartbeat_interval", heartbeat_interval),
            ("interval_jitter", interval_jitter),
            ("cancel_grace", cancel_grace),
            ("finish_timeout", finish_timeout),
        ):
            if type(seconds) not in (int, float):
                raise InvalidArgumentError(f"{name} is {seconds!r}; it takes a number of seconds")
        if heartbeat_launch_mode not in ("thread", "asyncio"):
            raise InvalidArgumentError(
                f"heartbeat_launch_mode is {heartbeat_launch_mode!r}; "
                "it takes 'thread' or 'asyncio'"
            )
        self.tracer = tracer
        self.max_rollouts = max_rollouts
        self.poll_interval = poll_interval
        self.heartbeat_interval = heartbeat_interval
        self.interval_jitter = interval_jitter
        self.heartbeat_launch_mode: HeartbeatMode = heartbeat_launch_mode
        self.heartbeat_include_gpu = heartbeat_include_gpu
        self.cancel_grace = cancel_grace
        self.finish_timeout = finish_timeout
        self._agent: LitAgent[T] | None = None
        self._hooks = Hooks()
        self._errors = KnownErrors()
        self._llm_proxy: LLMProxy | None = None
        self._parts: _WorkerParts | None = None

    # -- life cycle ------------------------------------------------------------------------------

    def init(
        self,
        agent: LitAgent[T],
        *,
        hooks: Sequence[Hook] | None = None,
        llm_proxy: LLMProxy | None = None,
        **kwargs: Any,
    ) -> None:
        agent.check_signature()
        self._llm_proxy = llm_proxy
        self._agent = agent
        self._hooks = Hooks(hooks or ())
        self._errors = KnownErrors.shared or KnownErrors()
        agent.set_runner(self)
        self.tracer.init()

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        super().init_worker(worker_id, store)
        if self._agent is None:
            raise RuntimeError("call init(agent) before init_worker")
        self.tracer.init_worker(worker_id, store)
        place = Workplace(
            runner=self,
            agent=self._agent,
            hooks=self._hooks,
            tracer=self.tracer,
            store=store,
            worker_id=worker_name(worker_id),
            sync_calls=SyncCalls(f"agl-agent-{worker_id}"),
            cancel_grace=self.cancel_grace,
            finish_timeout=self.finish_timeout,
            errors=self._errors,
            llm_proxy=self._llm_proxy,
        )
        oversight = Oversight(store)
        heartbeat = Heartbeat(
            store,
            place.worker_id,
            oversight.heard,
            interval=self.heartbeat_interval,
            jitter=self.interval_jitter,
            mode=self.heartbeat_launch_mode,
            include_gpu=self.heartbeat_include_gpu,
        )
        self._parts = _WorkerParts(place, oversight, heartbeat)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.workplace.sync_calls.close()
            parts.heartbeat.close()
        self.worker_id = None
        self.tracer.teardown_worker(worker_id)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self._agent = None
        self._llm_proxy = None
        self._hooks = Hooks()
        self.tracer.teardown()

    def get_agent(self) -> LitAgent[T]:
        """Return the agent.

        Raises:
            ValueError: :meth:`init` was not called.
        """
        if self._agent is None:
            raise ValueError("the runner has no agent; Runner.init sets it")
        return self._agent

    def get_store(self) -> LightningStore:
        """Return the store of the worker.

        Raises:
            ValueError: :meth:`init_worker` was not called.
        """
        if self._parts is None:
            raise ValueError("the runner has no store; Runner.init_worker sets it")
        return self._parts.workplace.store

    def get_tracer(self) -> Tracer:
        """Return the tracer."""
        return self.tracer

    def get_worker_id(self) -> str:
        """Return the id of the worker in the store; ``Worker-Unknown`` before it is initialised."""
        return worker_name("Unknown" if self.worker_id is None else self.worker_id)

    # -- running ---------------------------------------------------------------------------------

    async def iter(self, *, event: ExecutionEvent | None = None, until_idle: bool = False) -> None:
        """See :meth:`Runner.iter`. A failed call to the store is repeated until it succeeds.

        Raises:
            RuntimeError: The worker is not initialised.
            KeyboardInterrupt: The agent raised it; its attempt is ``failed``.
        """
        parts = self._worker()
        progress = Progress(parts.workplace.worker_id, self.max_rollouts)
        async with _held(parts.heartbeat), _stopper(event) as stopped:
            claims = Claims(
                parts.workplace.store,
                parts.workplace.worker_id,
                stopped,
                wait=self.poll_interval,
                jitter=self.interval_jitter,
                until_idle=until_idle,
            )
            try:
                while not stopped.done() and not progress.at_limit:
                    rollout = await claims.next()
                    if rollout is None:
                        return
                    run = await self._run(parts, rollout)
                    await report_end(run)
                    if isinstance(run.error, KeyboardInterrupt):
                        raise run.error
                    progress.count(run)
            finally:
                progress.tell()

    async def step(
        self,
        input: TaskInput,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
    ) -> Rollout:
        """See :meth:`Runner.step`."""
        parts = self._worker()
        store = parts.workplace.store
        resources_id = None
        if resources is not None:
            resources_id = (await store.add_resources(resources)).resources_id
        rollout = await store.start_rollout(
            input, mode=mode, resources_id=resources_id, worker_id=parts.workplace.worker_id
        )
        # A step shorter than a heartbeat's period sends no heartbeat.
        async with _held(parts.heartbeat, after=self.heartbeat_interval):
            run = await self._run(parts, rollout, event)
        await report_end(run, raised=True)
        if run.error is not None:
            raise run.error
        finished = await store.get_rollout_by_id(rollout.rollout_id)
        if finished is None:
            raise RuntimeError(f"rollout {rollout.rollout_id} is gone from the store")
        return finished

    def _worker(self) -> _WorkerParts:
        if self._parts is None:
            raise RuntimeError(
                "the runner has no worker: call init and init_worker, or use run_context"
            )
        return self._parts

    async def _run(
        self, parts: _WorkerParts, rollout: AttemptedRollout, event: ExecutionEvent | None = None
    ) -> AttemptRun:
        """Run one attempt in its own task, so that it ends properly if the caller is cancelled."""
        run = AttemptRun(parts.workplace, rollout)
        report_start(run)
        task = asyncio.create_task(run.run())
        with parts.oversight.over(run):
            try:
                if event is None:
                    await asyncio.wait((task,))
                else:
                    async with _stopper(event) as stopped:
                        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
                        run.stop(AgentCancelledError("the event was set that stops the step"))
                        await asyncio.wait((task,))
            except asyncio.CancelledError:
                await self._end_soon(run, task)
                raise
        return run

    async def _end_soon(self, run: AttemptRun, task: asyncio.Task[None]) -> None:
        run.stop(AgentCancelledError("the runner was stopped"))
        with anyio.CancelScope(shield=True):
            await asyncio.wait((task,), timeout=_GRACE_PERIODS * self.cancel_grace)
            if not task.done():  # a hook or the store hangs
                task.cancel()
                await asyncio.wait((task,), timeout=CANCELLED_TIMEOUT)


class _WorkerParts(NamedTuple):
    """The parts of one worker, created in ``init_worker``."""

    workplace: Workplace
    oversight: Oversight
    heartbeat: Heartbeat


@asynccontextmanager
async def _held(heartbeat: Heartbeat, *, after: float = 0.0) -> AsyncGenerator[None]:
    heartbeat.hold(after=after)
    try:
        yield
    finally:
        await heartbeat.release()


@asynccontextmanager
async def _stopper(event: ExecutionEvent | None) -> AsyncGenerator[asyncio.Future[None]]:
    """Yield a future that is done when the event is set; without an event, never."""
    if event is None:
        yield asyncio.get_running_loop().create_future()
        return
    waiting = asyncio.ensure_future(event.wait_async())
    try:
        yield waiting
    finally:
        waiting.cancel()
