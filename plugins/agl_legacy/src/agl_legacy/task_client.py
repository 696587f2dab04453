"""The client of the task server of 0.1, and a task loader for development in its place."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import warnings
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import aiohttp

from agl_core.env import LightningEnvVar
from agl_core.types import NamedResources, ResourcesUpdate, TaskInput
from agl_legacy.types import RolloutLegacy, Task, TaskIfAny

__all__ = ["AgentLightningClient", "DevTaskLoader"]

T = TypeVar("T")
logger = logging.getLogger(__name__)

_CLIENT_HEADER: Final = "X-AgentLightning-Client"


class AgentLightningClient:
    """Gets tasks and resources from a task server, and posts rollouts.

    Thread-safe, and usable in several event loops. The methods without ``_async`` wait for those
    with it.

    Args:
        endpoint: URL of the server.
        poll_interval: Seconds between two requests for a task. A server of agl answers earlier, as
            soon as it has a task.
        timeout: Longest time of one request, in seconds.

    Attributes:
        task_count: Number of tasks received.
    """

    def __init__(self, endpoint: str, poll_interval: float = 5.0, timeout: float = 10.0) -> None:
        if type(self) is AgentLightningClient:
            warnings.warn(
                "AgentLightningClient is deprecated; use LightningStoreClient",
                DeprecationWarning,
                stacklevel=2,
            )
        self.endpoint = endpoint.rstrip("/")
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.task_count = 0
        self._resources: dict[str, ResourcesUpdate] = {}
        self._reachable = True

    # -- tasks -----------------------------------------------------------------------------------

    async def poll_next_task_async(self) -> Task | None:
        """Wait for the next task. While the server cannot be reached, it is asked again."""
        while True:
            asked = time.monotonic()
            wait = min(self.poll_interval, self.timeout / 2)
            answer = await self._request("GET", "/task", params={"wait": str(wait)})
            if answer is not None:
                found = TaskIfAny.model_validate(answer)
                if found.is_available and found.task is not None:
                    self.task_count += 1
                    return found.task
            await asyncio.sleep(max(0.0, asked + self.poll_interval - time.monotonic()))

    def poll_next_task(self) -> Task | None:
        """See :meth:`poll_next_task_async`."""
        return _wait(self.poll_next_task_async())

    # -- resources -------------------------------------------------------------------------------

    async def get_resources_by_id_async(self, resources_id: str) -> ResourcesUpdate | None:
        """Return a snapshot; None if the request fails. Snapshots are asked for once."""
        if resources_id in self._resources:
            return self._resources[resources_id]
        return self._keep(await self._request("GET", f"/resources/{resources_id}"))

    def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """See :meth:`get_resources_by_id_async`."""
        return _wait(self.get_resources_by_id_async(resources_id))

    async def get_latest_resources_async(self) -> ResourcesUpdate | None:
        """Return the latest snapshot; None if the request fails."""
        return self._keep(await self._request("GET", "/resources/latest"))

    def get_latest_resources(self) -> ResourcesUpdate | None:
        """See :meth:`get_latest_resources_async`."""
        return _wait(self.get_latest_resources_async())

    def _keep(self, answer: Any) -> ResourcesUpdate | None:
        if answer is None:
            return None
        update = ResourcesUpdate.model_validate(answer)
        self._resources[update.resources_id] = update
        return update

    # -- rollouts --------------------------------------------------------------------------------

    async def post_rollout_async(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Post a finished rollout; return the server's answer, or None if the request fails."""
        return await self._request("POST", "/rollout", json=rollout.model_dump(mode="json"))

    def post_rollout(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """See :meth:`post_rollout_async`."""
        return _wait(self.post_rollout_async(rollout))

    # -- HTTP ------------------------------------------------------------------------------------

    async def _request(self, method: str, path: str, **options: Any) -> Any:
        headers = {_CLIENT_HEADER: "true"}
        if token := os.environ.get(LightningEnvVar.AGL_AUTH_TOKEN):
            headers["Authorization"] = f"Bearer {token}"
        limit = aiohttp.ClientTimeout(total=self.timeout)
        try:
            # One session per call: an object is used in several loops, and calls are rare.
            async with (
                aiohttp.ClientSession(headers=headers, timeout=limit) as session,
                session.request(method, self.endpoint + path, **options) as response,
            ):
                response.raise_for_status()
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            level = logging.WARNING if self._reachable else logging.DEBUG
            logger.log(level, "%s %s%s failed: %r", method, self.endpoint, path, error)
            self._reachable = False
            return None
        self._reachable = True
        return answer


class DevTaskLoader(AgentLightningClient):
    """Serves a list of tasks from memory, over and over; keeps the rollouts that are posted.

    Args:
        tasks: Inputs of the agent, or :class:`~agl_legacy.Task` objects.
        resources: Resources by name, or a whole snapshot.
        kwargs: Arguments of :class:`AgentLightningClient`.

    Raises:
        ValueError: There are no tasks, or some are ``Task`` objects and others are not.
    """

    def __init__(
        self,
        tasks: Sequence[TaskInput] | Sequence[Task],
        resources: NamedResources | ResourcesUpdate,
        **kwargs: Any,
    ) -> None:
        super().__init__(endpoint="local://", **kwargs)
        given = [isinstance(task, Task) for task in tasks]
        if not given:
            raise ValueError("DevTaskLoader needs at least one task")
        if any(given) != all(given):
            raise ValueError("give DevTaskLoader either Task objects or inputs, not both")
        if not isinstance(resources, ResourcesUpdate):
            now = time.time()
            resources = ResourcesUpdate(
                resources_id="local",
                create_time=now,
                update_time=now,
                version=1,
                resources=resources,
            )
        self._snapshot = resources
        self._tasks = list(tasks)
        self._rollouts: list[RolloutLegacy] = []

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def rollouts(self) -> list[RolloutLegacy]:
        """Rollouts posted so far."""
        return list(self._rollouts)

    async def poll_next_task_async(self) -> Task | None:
        """Return the next task; after the last one comes the first one again."""
        task = self._tasks[self.task_count % len(self._tasks)]
        self.task_count += 1
        if isinstance(task, Task):
            return task
        return Task(
            rollout_id=f"local_task_{self.task_count:03d}",
            input=task,
            resources_id=self._snapshot.resources_id,
            create_time=time.time(),
        )

    async def get_resources_by_id_async(self, resources_id: str) -> ResourcesUpdate | None:
        """Return the snapshot.

        Raises:
            ValueError: It has another id.
        """
        if resources_id != self._snapshot.resources_id:
            raise ValueError(
                f"there are no resources {resources_id!r}, only {self._snapshot.resources_id!r}"
            )
        return self._snapshot

    async def get_latest_resources_async(self) -> ResourcesUpdate | None:
        """Return the snapshot."""
        return self._snapshot

    async def post_rollout_async(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Keep a rollout."""
        self._rollouts.append(rollout)
        return {"status": "received", "rollout_id": rollout.rollout_id}


def _wait(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in another thread if this one has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, call).result()
