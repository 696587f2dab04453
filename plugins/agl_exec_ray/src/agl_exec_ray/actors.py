"""The actors of a run: code that runs in Ray's worker processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

import ray

from agl_core.env import LightningEnvVar
from agl_core.execution import AlgorithmBundle, RunnerBundle, ThreadingEvent, supervise
from agl_exec_cs import StoreAccess, run_runner
from agl_store_http import LightningStoreClient

__all__ = ["AlgorithmHost", "RunnerHost", "launch"]

logger = logging.getLogger(__name__)

_CALLS: Final = 4
"""Calls that an actor serves at a time: ``run``, and those that end it."""


def launch(host: type[Any], options: dict[str, Any], token: str) -> Any:
    """Start an actor.

    Ray does not restart it by itself: the attempts of a dead actor have to be failed first.

    Args:
        host: Its class.
        options: Resources and environment.
        token: Access token for the store server; empty for a server without tokens.
    """
    common = {"max_concurrency": _CALLS, "max_restarts": 0, "max_task_retries": 0}
    actor: Any = ray.remote(host)
    return actor.options(**common, **options).remote(token)


class _Host:
    """An actor that works until it is told to stop.

    Args:
        token: Access token for the store server; empty for a server without tokens.
    """

    def __init__(self, token: str) -> None:
        if token:
            # The clients of stores and proxies read it, those of agents included.
            os.environ[LightningEnvVar.AGL_AUTH_TOKEN] = token
        self._stop = ThreadingEvent()

    def where(self) -> str:
        """Return the process and its node, once Ray has placed the actor."""
        return f"process {os.getpid()} of node {ray.util.get_node_ip_address()}"

    def stop(self) -> None:
        """Request the end of the work; it is cancelled after its grace period."""
        self._stop.set()


class RunnerHost(_Host):
    """Runs several workers, each in a thread with an event loop of its own."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self._leave = ThreadingEvent()

    def run(
        self, bundle: RunnerBundle, workers: Sequence[int], access: StoreAccess, grace: float
    ) -> None:
        """Run the workers to their end.

        Args:
            bundle: The runner bundle of the run.
            workers: Their worker ids.
            access: How they reach the store.
            grace: Seconds between the stop event and the cancellation.

        Raises:
            Exception: The error of the first worker that failed; the others are stopped.
        """
        with ThreadPoolExecutor(len(workers), thread_name_prefix="agl-runner") as pool:
            futures = [
                pool.submit(self._run_one, bundle, worker, access, grace) for worker in workers
            ]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                self.stop()
        for future in futures:
            future.result()

    def _run_one(
        self, bundle: RunnerBundle, worker: int, access: StoreAccess, grace: float
    ) -> None:
        work = partial(run_runner, bundle, worker, self._leave, access)
        asyncio.run(supervise(work, self._stop, grace))

    def retire(self) -> None:
        """Claim no more work; what the workers have claimed is finished without a time limit."""
        self._leave.set()

    def stop(self) -> None:
        self._leave.set()
        super().stop()


class AlgorithmHost(_Host):
    """Runs the algorithm, which reaches the store over HTTP."""

    def run(self, bundle: AlgorithmBundle, url: str, grace: float) -> None:
        """Run the algorithm to its end.

        Args:
            bundle: The algorithm bundle of the run.
            url: URL of the store server.
            grace: Seconds between the stop event and the cancellation.

        Raises:
            Exception: The error of the algorithm.
        """

        async def lead() -> None:
            client = LightningStoreClient(url)
            try:
                await bundle(client, self._stop)
            finally:
                await client.close()

        asyncio.run(supervise(lead, self._stop, grace))
