"""The store server of one run, from its start to the moment when every runner knows of the end."""

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
    """A run whose store is served.

    Attributes:
        store: The store as the algorithm sees it.
        url: Where runners find it; empty without a server.
    """

    store: LightningStore
    url: str
    served: RunStore | None

    def end(self) -> None:
        """Tell runners everywhere that there is no more work."""
        if self.served is not None:
            self.served.end_run()

    def settle(self, timeout: float) -> None:
        """Wait for runners elsewhere: they write down what they do, and learn of the end."""
        if self.served is not None:
            asyncio.run(self.served.wait_settled(timeout))
            self.served.close_open_attempts("the run ended before the attempt did")


@contextmanager
def serve_run(
    store: RunStore, host: str | None, port: int, *, any_port: bool
) -> Generator[ServedRun]:
    """Serve a run's store while the context is open. Not for a thread with a running loop.

    Args:
        store: The store.
        host: Interface; None is loopback.
        port: Port; 0 takes a free one.
        any_port: Take a free one too if that port is taken.

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
