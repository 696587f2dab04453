"""The page that Prometheus scrapes, as an ASGI app."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agl_core.store import LightningStore
from agl_metrics_prometheus.exposition import LiveCollector, registry_of
from agl_metrics_prometheus.totals import all_totals
from agl_serving import Message, Receive, Send

__all__ = ["Page", "metrics_page"]

_OFF: Final = b"No tracker prometheus runs here; start one: agl store --tracker prometheus\n"


class Page:
    """Answers every GET with the metrics, in the format that the Accept header asks for.

    Args:
        collector: Reads the metrics.
    """

    def __init__(self, collector: Collector) -> None:
        self._registry = registry_of(collector)

    def is_on(self) -> bool:
        """Return whether there are metrics to show."""
        return True

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _send(send, 405, b"text/plain", b"GET only\n")
        elif not self.is_on():
            await _send(send, 404, b"text/plain", _OFF)
        else:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            accept = headers.get(b"accept", b"").decode("latin-1")
            encode, kind = choose_encoder(accept)
            # Files of other processes are read, and 100,000 samples take a second.
            body: bytes = await asyncio.to_thread(encode, self._registry)
            await _send(send, 200, kind.encode(), body if scope["method"] == "GET" else b"")


class _LivePage(Page):
    def is_on(self) -> bool:
        return bool(all_totals())


def metrics_page(store: LightningStore) -> Page:
    """Return the page of a store server: the metrics of its process and of those around it."""
    del store
    return _LivePage(LiveCollector())


async def _send(send: Send, status: int, kind: bytes, body: bytes) -> None:
    headers: Any = [(b"content-type", kind), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
