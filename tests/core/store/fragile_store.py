"""A store that is not thread-safe, and that notices a second call."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agl_core.store import InMemoryLightningStore, LightningStore
from agl_core.store._delegating import DelegatingStore


class FragileStore(DelegatingStore):
    """Fails if two calls overlap, and yields in the middle of every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._store = InMemoryLightningStore(thread_safe=False, scan_debounce_seconds=0)
        self._inside = threading.Lock()

    def target(self) -> LightningStore:
        return self._store

    async def delegate(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        assert self._inside.acquire(blocking=False), f"{name} came in beside another call"
        try:
            await asyncio.sleep(0)
            return await super().delegate(name, *args, **kwargs)
        finally:
            self._inside.release()

    def otlp_traces_endpoint(self) -> str:
        return "http://127.0.0.1:1/v1/traces"
