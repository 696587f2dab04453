"""The runner of 0.1: it gets tasks from a task server and posts what the agent made of them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from opentelemetry.sdk.trace import ReadableSpan

from agl_core.adapter import Adapter
from agl_core.agent import LitAgent
from agl_core.errors import AgentResultError, error_text
from agl_core.ids import generate_id
from agl_core.sync_calls import SyncCalls
from agl_core.tracer import Tracer
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    ExecutionEvent,
    ParallelWorkerBase,
    ResourcesUpdate,
    Span,
    Triplet,
)
from agl_legacy.task_client import AgentLightningClient
from agl_legacy.types import RolloutLegacy, Task

__all__ = ["LegacyAgentRunner"]

logger = logging.getLogger(__name__)

_METHODS: Final = {
    True: ("training_rollout", "rollout"),
    # In 0.1, validation is training unless an agent says otherwise.
    False: ("validation_rollout", "rollout", "training_rollout"),
}


class LegacyAgentRunner(ParallelWorkerBase):
    """Runs an agent on the tasks of a client, one at a time.

    An agent is called as in 0.1 (``training_rollout(task, rollout_id, resources)``) if its method
    has the parameter ``rollout_id``, else as in 0.3. Its methods ``on_rollout_start(task, runner,
    tracer)`` and ``on_rollout_end(task, rollout, runner, tracer)`` are called if it has them. Sync
    agents run in a worker thread.

    Args:
        agent: The agent.
        client: Where tasks come from and rollouts go.
        tracer: Records the agent's calls. It must be set up for this worker: see
            :meth:`~agl_core.tracer.Tracer.init_worker`.
        triplet_exporter: Turns spans into triplets.
        worker_id: Number of the worker, for the log.
        max_tasks: Number of tasks after which :meth:`iter` ends; None: never.
    """

    def __init__(
        self,
        agent: LitAgent[Any],
        client: AgentLightningClient,
        tracer: Tracer,
        triplet_exporter: Adapter[Any, Any],
        worker_id: int | None = None,
        max_tasks: int | None = None,
    ) -> None:
        self.agent = agent
        self.client = client
        self.tracer = tracer
        self.triplet_exporter = triplet_exporter
        self.worker_id = worker_id
        self.max_tasks = max_tasks
        agent.set_runner(cast("Any", self))

    def run(self) -> bool:
        """See :meth:`run_async`."""
        return asyncio.run(self.run_async())

    def iter(self) -> int:
        """See :meth:`iter_async`."""
        return asyncio.run(self.iter_async())

    async def run_async(self) -> bool:
        """Wait for a task, run the agent on it and post the rollout; return whether it was run."""
        task = await self.client.poll_next_task_async()
        if task is None:
            return False
        if task.resources_id is None:
            update = await self.client.get_latest_resources_async()
        else:
            update = await self.client.get_resources_by_id_async(task.resources_id)
        if update is None:
            logger.error("Task %s is left to others: no resources", task.rollout_id)
            return False
        rollout = await self._run_agent(task, update)
        if await self.client.post_rollout_async(rollout) is None:
            logger.error("The rollout of task %s could not be posted", task.rollout_id)
        return True

    async def iter_async(self, event: ExecutionEvent | None = None) -> int:
        """Run tasks until ``max_tasks``; return their number.

        Args:
            event: Ends the loop while it waits for a task.
        """
        done = 0
        while self.max_tasks is None or done < self.max_tasks:
            if event is not None and event.is_set():
                break
            done += await self.run_async()
        return done

    # -- one task --------------------------------------------------------------------------------

    async def _run_agent(self, task: Task, update: ResourcesUpdate) -> RolloutLegacy:
        started = time.time()
        await self._call_hook("on_rollout_start", task, self, self.tracer)
        try:
            async with self.tracer.trace_context(name=f"rollout_{task.rollout_id}"):
                result = await self._call_agent(task, update)
            rollout = self._to_rollout(task, result, self.tracer.get_last_trace())
            rollout.model_dump_json()  # what is not JSON fails this task, and not the runner
        except Exception as error:
            logger.exception("The agent failed on task %s", task.rollout_id)
            rollout = RolloutLegacy(
                rollout_id=task.rollout_id, task=task, metadata={"error": error_text(error)}
            )
        await self._call_hook("on_rollout_end", task, rollout, self, self.tracer)
        reward, seconds = rollout.final_reward, time.time() - started
        logger.info("Task %s: reward %s after %.1f s", task.rollout_id, reward, seconds)
        return rollout

    async def _call_agent(self, task: Task, update: ResourcesUpdate) -> Any:
        method = self._method(task.mode == "train")
        if "rollout_id" in inspect.signature(method).parameters:
            call = partial(method, task.input, rollout_id=task.rollout_id)
        else:
            call = partial(method, task.input, rollout=_as_rollout(task))
        if self.agent.is_async():
            return await call(resources=update.resources)
        return await _in_thread(partial(call, resources=update.resources))

    def _method(self, training: bool) -> Callable[..., Any]:
        """Return the first method for the mode that the agent's class defines."""
        suffix = "_async" if self.agent.is_async() else ""
        names = [name + suffix for name in _METHODS[training]]
        kind = type(self.agent)
        defined = [name for name in names if getattr(kind, name) is not getattr(LitAgent, name)]
        return getattr(self.agent, (defined or names)[0])

    async def _call_hook(self, name: str, *arguments: Any) -> None:
        hook = getattr(self.agent, name, None)
        if hook is None:
            return
        try:
            await _in_thread(partial(hook, *arguments))
        except Exception:
            logger.exception("%s of the agent failed", name)

    def _to_rollout(self, task: Task, result: Any, spans: Sequence[Span]) -> RolloutLegacy:
        """Make the rollout to post from what the agent returned and what was traced."""
        if isinstance(result, RolloutLegacy):
            rollout = result.model_copy(update={"task": result.task or task})
        else:
            rollout = RolloutLegacy(rollout_id=task.rollout_id, task=task)
            spans = _read_result(rollout, result) or spans
        if spans:
            if rollout.trace is None:
                rollout.trace = [span.model_dump(mode="json") for span in spans]
            rollout.triplets = list(self.triplet_exporter.adapt(spans)) or rollout.triplets
        if rollout.final_reward is None and rollout.triplets:
            rollout.final_reward = rollout.triplets[-1].reward
        return rollout


def _read_result(rollout: RolloutLegacy, result: Any) -> list[Span]:
    """Write what an agent returned into the rollout; return the spans among it.

    Raises:
        AgentResultError: It has none of the types that an agent of 0.1 may return.
    """
    if result is None or result == []:
        return []
    if isinstance(result, (int, float)):
        rollout.final_reward = float(result)
        return []
    if isinstance(result, list):
        items = cast("list[Any]", result)
        for kind, field in ((Triplet, "triplets"), (dict, "trace")):
            if all(isinstance(item, kind) for item in items):
                setattr(rollout, field, items)
                return []
        if all(isinstance(item, ReadableSpan) for item in items):
            return [
                Span.from_opentelemetry(item, rollout.rollout_id, "", number)
                for number, item in enumerate(items, start=1)
            ]
    raise AgentResultError(
        f"an agent returned {result!r}; in 0.1 it returns None, a reward, triplets, spans or a "
        "RolloutLegacy"
    )


def _as_rollout(task: Task) -> AttemptedRollout:
    """Return the rollout that an agent of 0.3 gets for a task of 0.1."""
    now = time.time()
    attempt = Attempt(
        rollout_id=task.rollout_id,
        attempt_id=f"at-{generate_id(8)}",
        sequence_id=task.num_claims or 1,
        start_time=now,
        status="running",
    )
    return AttemptedRollout(
        rollout_id=task.rollout_id,
        input=task.input,
        start_time=task.create_time or now,
        mode=task.mode,
        resources_id=task.resources_id,
        status="running",
        metadata=task.metadata,
        attempt=attempt,
    )


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Run sync code in a thread that is abandoned if the caller is cancelled."""
    calls = SyncCalls("legacy-agent")
    try:
        outcome = await calls.submit(call)
    finally:
        calls.close()
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
