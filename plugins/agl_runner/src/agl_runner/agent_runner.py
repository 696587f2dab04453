"""The runner of :class:`~agl_core.agent.LitAgent` agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from agl_core.errors import AgentCancelledError, PermissionDeniedError
from agl_core.known_errors import KnownErrors
from agl_core.plugins import configured_by
from agl_core.runner import (
    Hooks,
    Runner,
    call_replayer,
    choose_concurrency,
    worker_name,
)
from agl_core.sync_calls import SyncCalls
from agl_runner.attempt import AttemptRun, Workplace
from agl_runner.claims import Claims, to_the_end
from agl_runner.config import AgentRunnerConfig, HeartbeatMode
from agl_runner.final_status import CANCELLED_TIMEOUT
from agl_runner.heartbeat import Heartbeat
from agl_runner.oversight import Oversight
from agl_runner.reporting import Progress, report_end, report_start
from agl_runner.slots import LoopWatch, Slots
from agl_runner.snapshots import Snapshots

if TYPE_CHECKING:
    from agl_core.agent import LitAgent
    from agl_core.proxy import LLMProxy
    from agl_core.runner import Hook
    from agl_core.store import LightningStore
    from agl_core.tracer import Tracer
    from agl_core.types import (
        AttemptedRollout,
        ExecutionEvent,
        NamedResources,
        Rollout,
        RolloutConfig,
        RolloutMode,
        TaskInput,
    )

T = TypeVar("T")

# Two cancel_grace periods for the agent to end, then the attempt itself is cancelled.
_GRACE_PERIODS: Final = 2


class LitAgentRunner(Runner[T]):
    """Runs rollouts, several at a time; each is traced, supervised, and its result stored.

    Async agents run on the event loop, sync agents in worker threads that see the same context
    variables. The log names an agent that blocks the shared event loop. A stopped sync agent is
    abandoned in its thread, since Python cannot end a thread; it delays neither the next rollout
    nor the interpreter's exit.

    An agent is stopped when its rollout is cancelled or its attempt superseded (the heartbeat's
    reply shows this, so within ``heartbeat_interval``), when it exceeds the rollout's
    ``timeout_seconds`` (by the runner's own clock; the runner writes the status ``timeout``, as the
    store's watchdog would), and when the runner itself is cancelled.

    Concurrency: :meth:`step` may be called several times at once on one event loop; :meth:`iter`
    runs up to ``concurrency`` rollouts at a time, which share one worker of the store, its
    heartbeats and the thread that exports spans.

    Args:
        config: The options; see :class:`~agl_runner.AgentRunnerConfig`.
    """

    @configured_by(AgentRunnerConfig)
    def __init__(self, config: AgentRunnerConfig) -> None:
        self.tracer = config.tracer
        self.max_rollouts = config.max_rollouts
        self.poll_interval = config.poll_interval
        self.heartbeat_interval = config.heartbeat_interval
        self.interval_jitter = config.interval_jitter
        self.heartbeat_launch_mode: HeartbeatMode = config.heartbeat_launch_mode
        self.heartbeat_include_gpu = config.heartbeat_include_gpu
        self.cancel_grace = config.cancel_grace
        self.finish_timeout = config.finish_timeout
        self.concurrency = config.concurrency
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
            sync_calls=SyncCalls(f"agl-agent-{worker_id}", in_main_thread=True),
            cancel_grace=self.cancel_grace,
            finish_timeout=self.finish_timeout,
            errors=self._errors,
            llm_proxy=self._llm_proxy,
        )
        oversight = Oversight(store)
        concurrency = choose_concurrency(self._agent, self.concurrency)
        heartbeat = Heartbeat(
            store,
            place.worker_id,
            oversight.heard,
            interval=self.heartbeat_interval,
            jitter=self.interval_jitter,
            mode=self.heartbeat_launch_mode,
            include_gpu=self.heartbeat_include_gpu,
            attempts=oversight.running if concurrency > 1 else None,
        )
        self._parts = _WorkerParts(place, oversight, heartbeat, concurrency)

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
            slots = Slots(parts.concurrency, stopped)
            try:
                with _watched(parts):
                    try:
                        await self._fill(slots, claims, stopped, parts, progress)
                    except PermissionDeniedError:  # it may claim no more; what runs is finished
                        await slots.drain()
                        raise
                    if slots.error is None:
                        await slots.drain()
            finally:
                slots.cancel()
                await slots.drain()
                progress.tell()
        if slots.error is not None:
            raise slots.error

    async def _fill(
        self,
        slots: Slots,
        claims: Claims,
        stopped: asyncio.Future[None],
        parts: _WorkerParts,
        progress: Progress,
    ) -> None:
        """Run rollouts in the slots until the runner must end or there is no more work."""
        if parts.concurrency > 1:
            await parts.heartbeat.announce()
        started = 0
        while not stopped.done():
            free = await slots.free()
            if self.max_rollouts is not None:
                free = min(free, self.max_rollouts - started)
            if free <= 0 or stopped.done():
                return
            rollouts = await claims.next(free)
            if slots.error is not None:  # an attempt raised meanwhile; these would be cancelled
                await to_the_end(claims.hand_back(rollouts))
                return
            if not rollouts:
                return
            started += len(rollouts)
            snapshots = Snapshots(parts.workplace.store, shared=len(rollouts) > 1)
            for rollout in rollouts:
                slots.start(self._run_claimed(parts, rollout, snapshots, progress))

    async def _run_claimed(
        self,
        parts: _WorkerParts,
        rollout: AttemptedRollout,
        snapshots: Snapshots,
        progress: Progress,
    ) -> None:
        run = await self._run(parts, AttemptRun(parts.workplace, rollout, snapshots))
        await report_end(run)
        if isinstance(run.error, KeyboardInterrupt):
            raise run.error
        progress.count(run)

    async def step(
        self,
        input: TaskInput,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
        config: RolloutConfig | None = None,
        resources_id: str | None = None,
    ) -> Rollout:
        """See :meth:`Runner.step`; ``resources_id`` names a snapshot instead of ``resources``."""
        parts = self._worker()
        store = parts.workplace.store
        if resources is not None:
            resources_id = (await store.add_resources(resources)).resources_id
        rollout = await store.start_rollout(
            input,
            mode=mode,
            resources_id=resources_id,
            config=config,
            worker_id=parts.workplace.worker_id,
        )
        # A step shorter than a heartbeat's period sends no heartbeat.
        async with _held(parts.heartbeat, after=self.heartbeat_interval):
            run = await self._run(parts, AttemptRun(parts.workplace, rollout), event)
        await report_end(run, raised=True)
        if run.error is not None:
            raise run.error
        finished = await store.get_rollout_by_id(rollout.rollout_id)
        if finished is None:
            raise RuntimeError(f"rollout {rollout.rollout_id} is gone from the store")
        return finished

    async def replay(self, rollout_id: str, **options: Any) -> Any:
        """Run the agent on a recorded rollout of the store, with the installed replayer.

        Args:
            rollout_id: The rollout.
            **options: Options of the replayer, such as those of ``agl_replay.replay``.

        Raises:
            MissingDependencyError: No replayer is installed.
        """
        return await call_replayer(
            "replay_rollout",
            agent=self.get_agent(),
            recorded=rollout_id,
            store=self.get_store(),
            options=options,
        )

    def _worker(self) -> _WorkerParts:
        if self._parts is None:
            raise RuntimeError(
                "the runner has no worker: call init and init_worker, or use run_context"
            )
        return self._parts

    async def _run(
        self, parts: _WorkerParts, run: AttemptRun, event: ExecutionEvent | None = None
    ) -> AttemptRun:
        """Run one attempt in its own task, so that it ends properly if the caller is cancelled."""
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

        async def end() -> None:
            await asyncio.wait((task,), timeout=_GRACE_PERIODS * self.cancel_grace)
            if not task.done():  # a hook or the store hangs
                task.cancel()
                await asyncio.wait((task,), timeout=CANCELLED_TIMEOUT)

        await to_the_end(end())


class _WorkerParts(NamedTuple):
    """The parts of one worker, created in ``init_worker``."""

    workplace: Workplace
    oversight: Oversight
    heartbeat: Heartbeat
    concurrency: int


@contextmanager
def _watched(parts: _WorkerParts) -> Generator[None]:
    """Watch the event loop if several attempts of an async agent share it."""
    if parts.concurrency == 1 or not parts.workplace.agent.is_async():
        yield
        return
    watch = LoopWatch(parts.workplace.worker_id, parts.concurrency)
    try:
        yield
    finally:
        watch.stop()


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
    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if event is None:
        yield stopped
        return
    if event.is_set():  # not after a turn of the loop, in which work could start
        stopped.set_result(None)
    waiting = asyncio.ensure_future(event.wait_async())
    waiting.add_done_callback(lambda _: stopped.done() or stopped.set_result(None))
    try:
        yield stopped
    finally:
        waiting.cancel()
