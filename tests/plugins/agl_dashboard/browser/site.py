"""A store server with the dashboard, which a test starts, fills, stops and starts again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agl_core.store import LightningStore
from agl_store_http import LightningStoreServer, StoreAppOptions, installed_apps

T = TypeVar("T")


class Site:
    """Runs a store and its server on a loop of its own, since Playwright holds the test's thread.

    Args:
        store: The store.
        auth_token: The server's secret; None turns auth off.
    """

    def __init__(self, store: LightningStore, auth_token: str | None = None) -> None:
        self.store = store
        self._auth_token = auth_token
        self._port = 0
        self._server: LightningStoreServer | None = None
        self.rollout_ids: list[str] = []
        """Rollouts that the test filled in, in the order of their creation."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    @property
    def url(self) -> str:
        """Address of the dashboard, without a slash at its end."""
        return f"http://127.0.0.1:{self._port}/dashboard"

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop; return its result."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(timeout=300)

    def start(self) -> None:
        """Start the server, on the same port as before."""
        options = StoreAppOptions(mounts=installed_apps(), watchdog_seconds=0)
        self._server = LightningStoreServer(
            self.store,
            "127.0.0.1",
            self._port,
            launch_mode="asyncio",
            auth_token=self._auth_token,
            options=options,
        )
        self.run(self._server.start())
        self._port = int(self._server.endpoint.rpartition(":")[2])

    def stop(self) -> None:
        """Stop the server; the store keeps its data."""
        if self._server is not None:
            self.run(self._server.stop())
            self._server = None

    def close(self) -> None:
        """Stop everything."""
        self.stop()
        self.run(self.store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
