"""Starts, watches, replaces, scales and ends the actors of a run's runners."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
import ray.exceptions

from agl_core.errors import StoreUnavailableError, error_text
from agl_core.execution import ThreadingEvent
from agl_core.runner import worker_name
from agl_core.store import LightningStore
from agl_exec_cs import ScaledStore, StoreAccess, open_rollouts
from agl_exec_ray.actors import RunnerHost, launch
from agl_exec_ray.config import RayConfig

__all__ = ["Fleet", "Work"]

logger = logging.getLogger(__name__)

_PATIENCE: Final = 15.0
"""Seconds until the log says that an actor waits for resources; then again at growing intervals."""
_SCALE_PERIOD: Final = 5.0
"""Longest time between two looks at the queue, in seconds."""
_SCALE_PAUSE: Final = 0.5
"""Shortest time between two looks at the queue, in seconds."""
_DEATHS: Final = (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError)


@dataclass(frozen=True)
class Work:
    """The arguments of every actor.

    Attributes:
        bundle: Ray's reference to the runner bundle.
        access: How runners reach the store.
        token: Access token for the store server; empty for a server without tokens.
        options: Resources and environment of an actor.
    """

    bundle: Any
    access: StoreAccess
    token: str
    options: dict[str, Any]


class _Group:
    """The workers of one actor, and of the actors that replace it."""

    def __init__(self, workers: Sequence[int]) -> None:
        self.workers = workers
        self.names = [worker_name(worker) for worker in workers]
        first, last = workers[0], workers[-1]
        self.name = f"runner-{first}" if first == last else f"runner-{first} to runner-{last}"
        self.actor: Any = None
        self.task: asyncio.Task[None] | None = None
        self.deaths = 0
        self.placed = False
        self.retiring = False

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()


class Fleet:
    """The actors of a run, in the care of a thread.

    An actor that dies (killed, out of memory, its node lost) is replaced, up to a limit. One whose
    runners fail stops the run.

    Args:
        config: Options of the strategy.
        work: The arguments of every actor.
        store: The store of the run; autoscaling counts its rollouts.
        stop: The stop event of the run.
        release: Called with a worker id and a reason when the worker is gone; fails its open
            attempts. Returns whether the worker had finished an attempt since the last call.

    Attributes:
        failures: One line per failure.
    """

    def __init__(
        self,
        config: RayConfig,
        work: Work,
        store: LightningStore,
        stop: ThreadingEvent,
        release: Callable[[str, str], bool],
    ) -> None:
        self.failures: list[str] = []
        self._config = config
        self._work = work
        self._store = store
        self._stop = stop
        self._release = release
        self._hurry = ThreadingEvent()
        size = config.runners_per_actor
        self._groups = [
            _Group(range(first, min(first + size, config.n_runners)))
            for first in range(0, config.n_runners, size)
        ]
        self._thread = threading.Thread(target=self._main, name="agl-ray-fleet", daemon=True)

    def start(self) -> None:
        """Start the actors."""
        self._thread.start()

    def shut_down(self) -> bool:
        """End all actors, by force if needed. Ctrl+C kills them at once.

        Returns:
            Whether Ctrl+C was pressed.
        """
        self._stop.set()
        interrupted = False
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt:
                interrupted = True
                self._hurry.set()
        return interrupted

    # -- the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        stopped = asyncio.ensure_future(self._stop.wait_async())
        scaling = asyncio.ensure_future(self._scale())
        await asyncio.wait((stopped, scaling), return_when=asyncio.FIRST_COMPLETED)
        if scaling.done() and (error := scaling.exception()) is not None:
            logger.error("Runners cannot be started", exc_info=error)
            self._fail(error_text(error))
        await stopped
        scaling.cancel()
        await self._end_all()

    async def _end_all(self) -> None:
        hurried = asyncio.ensure_future(self._hurry.wait_async())
        left = [group for group in self._groups if group.running]
        for group in left:
            if group.placed:
                group.actor.stop.remote()
            else:
                ray.kill(group.actor)
        tasks = [group.task for group in left if group.task is not None]
        ending = asyncio.ensure_future(_all_of(tasks))
        await asyncio.wait(
            (ending, hurried),
            timeout=self._config.graceful_timeout * 2,  # to return, then to clean up
            return_when=asyncio.FIRST_COMPLETED,
        )
        hurried.cancel()
        for group in left:
            if group.running:
                logger.warning("%s did not end in time; ending it by force", group.name)
                ray.kill(group.actor)
        await asyncio.wait((ending,), timeout=self._config.terminate_timeout)
        for group in left:
            if group.running and group.task is not None:
                logger.error("The actor of %s cannot be ended", group.name)
                group.task.cancel()

    # -- one actor after the other ---------------------------------------------------------------

    def _start(self, group: _Group) -> None:
        group.retiring = False
        group.task = asyncio.create_task(self._keep(group))

    async def _keep(self, group: _Group) -> None:
        """Run the workers of a group, in one actor after the other, until they end."""
        work, grace = self._work, self._config.graceful_timeout
        failure: str | None = None
        while failure is None:
            group.placed = False
            try:
                group.actor = launch(RunnerHost, work.options, work.token)
            except Exception as error:  # Ray refuses the options
                failure = f"did not start: {error_text(error)}"
                break
            watching = asyncio.create_task(self._watch_placement(group))
            try:
                await group.actor.run.remote(work.bundle, group.workers, work.access, grace)
                failure = ""
            except _DEATHS as error:
                failure = await self._bury(group, error)
            except ray.exceptions.RayTaskError as error:
                failure = f"failed with {error_text(error.cause)}"
            except Exception as error:  # its environment cannot be set up, for one
                failure = f"did not start: {error_text(error)}"
            finally:
                watching.cancel()
                ray.kill(group.actor)
        if failure:
            self._fail(f"{group.name} {failure}")

    async def _bury(self, group: _Group, error: Exception) -> str | None:
        """Release the workers of an actor that died.

        Returns:
            None if the actor is to be replaced, else the failure; empty if it is not one.
        """
        ending = self._stop.is_set() or group.retiring
        # Its connection may be lost while it still runs; a second actor must not run beside it.
        ray.kill(group.actor)
        progress = [
            await asyncio.to_thread(self._release, name, "its runner died") for name in group.names
        ]
        if ending:
            return ""
        if any(progress):
            group.deaths = 0
        cause = " ".join(str(error).split()) or type(error).__name__
        if group.deaths >= self._config.max_restarts:
            return f"died: {cause}"
        group.deaths += 1
        logger.warning("%s died; replacing it: %s", group.name, cause)
        return None

    async def _watch_placement(self, group: _Group) -> None:
        """Log when an actor runs, and that the cluster has no room for it."""
        where = asyncio.ensure_future(_answer(group.actor.where.remote()))
        patience = _PATIENCE
        try:
            while not where.done():
                await asyncio.wait((where,), timeout=patience)
                if not where.done():
                    self._log_pending(group)
                    patience *= 2
        finally:
            where.cancel()
        if place := where.result():
            group.placed = True
            logger.info("%s runs in %s", group.name, place)

    def _log_pending(self, group: _Group) -> None:
        pending = [each.name for each in self._groups if each.running and not each.placed]
        if group.name != pending[0]:
            return  # one line for all of them
        config = self._config
        wanted = {"CPU": config.num_cpus, "GPU": config.num_gpus, **config.resources}
        logger.warning(
            "%d of %d actors wait for a node with %s; free in the cluster: %s. Set num_cpus to a "
            "fraction, raise runners_per_actor, or add nodes",
            len(pending),
            len(self._groups),
            _described(wanted),
            _described(ray.available_resources()),
        )

    def _fail(self, failure: str) -> None:
        self.failures.append(failure)
        self._stop.set()

    # -- how many --------------------------------------------------------------------------------

    async def _scale(self) -> None:
        """Start the actors that the work needs, and retire those that have none."""
        least = self._config.min_runners
        if least is None:
            for group in self._groups:
                self._start(group)
            return
        needed_at = time.monotonic()
        while True:
            wanted = max(self._actors_for(least), self._actors_for(await self._runners_needed()))
            running = [group for group in self._groups if group.running]
            if len(running) <= wanted:
                needed_at = time.monotonic()
            for group in [group for group in self._groups if not group.running][
                : max(0, wanted - len(running))
            ]:
                logger.info("Rollouts wait: starting %s", group.name)
                self._start(group)
            if time.monotonic() - needed_at >= self._config.idle_timeout:
                for group in running[wanted:]:
                    self._retire(group)
            await asyncio.sleep(_SCALE_PAUSE)
            await self._wait_for_work()

    async def _runners_needed(self) -> int:
        try:
            count = await open_rollouts(self._store)
        except StoreUnavailableError as error:
            logger.warning("The queue cannot be counted: %s", error)
            return 0
        return math.ceil(count / self._config.rollouts_per_runner)

    def _actors_for(self, runners: int) -> int:
        return math.ceil(min(runners, self._config.n_runners) / self._config.runners_per_actor)

    def _retire(self, group: _Group) -> None:
        if not group.retiring:
            group.retiring = True
            logger.info("No work for %s: ending it", group.name)
            group.actor.retire.remote()

    async def _wait_for_work(self) -> None:
        if not isinstance(self._store, ScaledStore):
            await asyncio.sleep(_SCALE_PERIOD)
            return
        waiting = asyncio.ensure_future(self._store.enqueued.wait_async())
        await asyncio.wait((waiting,), timeout=_SCALE_PERIOD)
        waiting.cancel()
        self._store.enqueued.clear()


async def _answer(reference: Any) -> str:
    """Return the value of a reference; empty if its actor is gone."""
    try:
        return await reference
    except (ray.exceptions.RayError, ray.exceptions.RayTaskError) as error:
        logger.debug("no answer: %r", error)
        return ""


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


def _described(resources: dict[str, float]) -> str:
    shown = {
        name: amount
        for name, amount in resources.items()
        if amount and not name.startswith(("node:", "object_store_memory"))
    }
    return ", ".join(f"{amount:g} {name}" for name, amount in shown.items()) or "no resources"
