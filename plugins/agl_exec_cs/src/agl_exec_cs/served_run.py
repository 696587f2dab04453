"""The store server of one run: it stops after every runner was notified of the run's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agl_cli_kit import error_console
from agl_core.errors import LaunchError
from agl_core.execution import RUN_ENDED, AlgorithmBundle, supervise
from agl_core.store import LightningStore
from agl_core.types import ExecutionEvent
from agl_exec_cs.dead_runners import DeadRunners
from agl_exec_cs.run_store import RunStore

if TYPE_CHECKING:
    from agl_store_http import LightningStoreServer

__all__ = ["ServedRun", "serve_run"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedRun:
    """A run and the server of its store.

    Attributes:
        store: The store that the algorithm uses.
        url: URL of the server; empty without a server.
        served: The store that the server serves; None without a server.
        elsewhere: Releases workers on a server elsewhere; None if there is none.
    """

    store: LightningStore
    url: str
    served: RunStore | None
    elsewhere: DeadRunners | None = None

    def lead(
        self,
        algorithm: AlgorithmBundle,
        stop: ExecutionEvent,
        grace: float,
        *,
        on_interrupt: Callable[[], None],
        end_runners: Callable[[], None] | None = None,
    ) -> None:
        """Run the algorithm in this thread, then end the run.

        Args:
            algorithm: The algorithm bundle of the run.
            stop: Ends the algorithm; set here when the algorithm has ended.
            grace: Seconds from the stop event to the cancellation of the algorithm, and again for
                the runners elsewhere to finish.
            on_interrupt: Called when Ctrl+C was pressed.
            end_runners: Ends the runners that the caller started, while the server still runs.

        Raises:
            Exception: The error of the algorithm.
        """
        error: BaseException | None = None
        try:
            asyncio.run(supervise(partial(algorithm, self.store, stop), stop, grace))
        except KeyboardInterrupt:
            on_interrupt()
            logger.warning("Stopping. Press Ctrl+C again to stop at once")
        except BaseException as raised:
            error = raised
        stop.set()
        try:
            self.end()
            if end_runners is not None:
                end_runners()
            self.wait_for_runners(grace)
        except KeyboardInterrupt:
            on_interrupt()
        if error is not None:
            raise error

    def end(self) -> None:
        """Hand out no more work; this notifies all runners of the end."""
        if self.served is not None:
            self.served.end_run()

    def release(self, worker_id: str, reason: str) -> bool:
        """Fail the open attempts of a worker that is gone, here or on the server elsewhere.

        Args:
            worker_id: The worker.
            reason: The cause, for the attempts' metadata.

        Returns:
            Whether the worker is known to have finished an attempt since it was released last.
        """
        if self.served is not None:
            return self.served.release(worker_id, reason)
        return self.elsewhere is not None and self.elsewhere.release(worker_id, reason)

    def wait_for_runners(self, timeout: float) -> None:
        """Wait until runners elsewhere have finished their attempts and were notified of the end.

        Args:
            timeout: Seconds; attempts that are open then are failed.
        """
        if self.served is not None:
            asyncio.run(self.served.wait_for_workers(timeout))
            self.served.close_open_attempts(RUN_ENDED)


@contextmanager
def serve_run(
    store: RunStore,
    host: str | None,
    port: int,
    *,
    any_port: bool,
    auth_token: str | None = None,
) -> Generator[ServedRun]:
    """Serve the store of a run for a ``with`` block. Not in a thread with a running event loop.

    Args:
        store: The store.
        host: Interface; None is loopback.
        port: Port; 0 takes a free one.
        any_port: Whether to use a free port if that one is taken.
        auth_token: The server's secret; None takes ``AGL_AUTH_TOKEN``, if that is set.

    Raises:
        LaunchError: The server does not start.
    """
    server = _start(store, host, port, any_port, auth_token)
    logger.info("The store serves at %s", server.endpoint)
    try:
        yield ServedRun(server, server.endpoint, store)
    finally:
        asyncio.run(server.stop())


def _start(
    store: RunStore, host: str | None, port: int, any_port: bool, auth_token: str | None
) -> LightningStoreServer:
    from agl_store_http import LightningStoreServer, StoreAppOptions, installed_apps

    options = StoreAppOptions(mounts=installed_apps())
    server = LightningStoreServer(store, host, port, auth_token=auth_token, options=options)
    try:
        asyncio.run(server.start())
    except LaunchError:
        if not any_port:
            raise
        server = LightningStoreServer(store, host, 0, auth_token=auth_token, options=options)
        asyncio.run(server.start())
    for app in options.mounts:
        _tell(f"{app.name.capitalize()} at {server.endpoint}{app.path}")
    return server


def _tell(line: str) -> None:
    """Log an address, or print it in a program that has set up no logging."""
    if logger.hasHandlers():
        logger.info(line)
    else:
        error_console().print(line, highlight=False, markup=False, soft_wrap=True)
