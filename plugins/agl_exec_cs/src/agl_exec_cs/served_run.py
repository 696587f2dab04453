"""The store server of one run: it stops after every runner was notified of the run's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agl_core.errors import LaunchError
from agl_core.store import LightningStore
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
    """

    store: LightningStore
    url: str
    served: RunStore | None

    def end(self) -> None:
        """Hand out no more work; this notifies all runners of the end."""
        if self.served is not None:
            self.served.end_run()

    def wait_for_runners(self, timeout: float) -> None:
        """Wait until runners elsewhere have finished their attempts and were notified of the end.

        Args:
            timeout: Seconds; attempts that are open then are failed.
        """
        if self.served is not None:
            asyncio.run(self.served.wait_for_workers(timeout))
            self.served.close_open_attempts("the run ended before the attempt did")


@contextmanager
def serve_run(
    store: RunStore, host: str | None, port: int, *, any_port: bool
) -> Generator[ServedRun]:
    """Serve the store of a run for a ``with`` block. Not in a thread with a running event loop.

    Args:
        store: The store.
        host: Interface; None is loopback.
        port: Port; 0 takes a free one.
        any_port: Whether to use a free port if that one is taken.

    Raises:
        LaunchError: The server does not start.
    """
    server = _start(store, host, port, any_port)
    logger.info("The store serves at %s", server.endpoint)
    try:
        yield ServedRun(server, server.endpoint, store)
    finally:
        asyncio.run(server.stop())


def _start(store: RunStore, host: str | None, port: int, any_port: bool) -> LightningStoreServer:
    from agl_store_http import LightningStoreServer

    server = LightningStoreServer(store, host, port)
    try:
        asyncio.run(server.start())
    except LaunchError:
        if not any_port:
            raise
        server = LightningStoreServer(store, host, 0)
        asyncio.run(server.start())
    return server
