"""A store that is not thread-safe, and that notices a second call."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agl_core.store import InterceptedStore, Interceptor, Next, StoreCall
from agl_store_memory import InMemoryLightningStore


class _Alone(Interceptor):
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self._inside = threading.Lock()

    async def around(self, call: StoreCall, next: Next) -> Any:
        self._calls.append(call.name)
        assert self._inside.acquire(blocking=False), f"{call.name} came in beside another call"
        try:
            await asyncio.sleep(0)
            return await next(call)
        finally:
            self._inside.release()


class FragileStore(InterceptedStore):
    """Fails if two calls overlap, and yields in the middle of every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        inner = InMemoryLightningStore(thread_safe=False, scan_debounce_seconds=0)
        super().__init__(inner, (_Alone(self.calls),))

    # A member of its own, so that a list in front of this store ends at it and not behind it.
    def otlp_traces_endpoint(self) -> str:
        return "http://127.0.0.1:1/v1/traces"
