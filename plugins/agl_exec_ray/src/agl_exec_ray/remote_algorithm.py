"""An algorithm that runs as an actor of the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import ray

from agl_core.store import LightningStore
from agl_core.types import ExecutionEvent
from agl_exec_ray.actors import AlgorithmHost, launch

__all__ = ["RemoteAlgorithm"]


@dataclass
class RemoteAlgorithm:
    """An algorithm bundle that runs another one in an actor.

    Attributes:
        bundle: Ray's reference to the algorithm bundle.
        options: Resources and environment of the actor.
        url: URL of the store server.
        token: Access token for it.
        grace: Seconds between the stop event and the cancellation.
    """

    bundle: Any
    options: dict[str, Any]
    url: str
    token: str
    grace: float

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        actor = launch(AlgorithmHost, self.options, self.token)
        run = asyncio.ensure_future(_result(actor.run.remote(self.bundle, self.url, self.grace)))
        stopped = asyncio.ensure_future(event.wait_async())
        try:
            await asyncio.wait((run, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                actor.stop.remote()
            await asyncio.wait((run,))
        except asyncio.CancelledError:
            # The actor cancels its algorithm at the same time, whose clean-up takes a moment.
            actor.stop.remote()
            await asyncio.wait((run,), timeout=self.grace)
            raise
        finally:
            stopped.cancel()
            ray.kill(actor)
        run.result()


async def _result(reference: Any) -> None:
    try:
        await reference
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error  # the algorithm's own error, as if it ran here
