"""The process of a proxy with ``launch_mode="mp"``: ``python -m agl_proxy_direct.worker FD FD``.

The two file descriptors are the listening socket and one end of a :class:`Link`. Everything else,
secrets included, comes over the link. The process ends when its parent closes the link or dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from agl_core.metrics import Metric, Metrics, recording
from agl_core.store import EncodedSpan, LightningStoreCapabilities
from agl_core.types import PaginatedResult, Span
from agl_proxy_direct.app import ProxyApp
from agl_proxy_direct.link import Link
from agl_proxy_direct.orders import AWAITED_ORDERS, ORDERS, WorkerSettings
from agl_serving import PythonServerLauncherArgs, SocketServer, freeze_memory, run_in_new_loop

__all__ = ["main"]

_METRICS_SECONDS: Final = 0.1
"""How long values of metrics are collected before they are sent to the parent."""


class _ParentStore:
    """The store of the parent; has what a proxy needs of a store."""

    def __init__(self, link: Link, capabilities: LightningStoreCapabilities) -> None:
        self._link = link
        self.capabilities = capabilities

    async def get_rollout_by_id(self, rollout_id: str) -> None:
        await self._link.request("probe", rollout_id)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        return await self._link.request("sequence_ids", rollout_attempt_ids)

    async def query_spans(
        self, rollout_id: str, attempt_id: str, *, name: str
    ) -> PaginatedResult[Span]:
        return await self._link.request("query_spans", (rollout_id, attempt_id, name))

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        await self._link.request("spans", [_values_of(span) for span in spans])
        return spans


def _values_of(span: EncodedSpan) -> tuple[Any, ...]:
    """Return the arguments of EncodedSpan's constructor; they pickle faster than the object."""
    return (
        span.rollout_id,
        span.attempt_id,
        span.sequence_id,
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.start_time,
        span.end_time,
        span.payload if span.parts is None else None,
        span.parts,
    )


class _ParentMetrics(Metrics):
    """Sends values to the backends of the parent, several at a time."""

    counts_histograms = True  # the parent's backends count

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._values: list[tuple[Metric, float, tuple[str, ...]]] = []

    def instrument(self, metric: Metric) -> Any:
        def keep(value: float, labels: tuple[str, ...]) -> None:
            if not self._values:
                self._loop.call_later(_METRICS_SECONDS, self.send)
            self._values.append((metric, value, labels))

        return keep

    def listeners(self) -> Sequence[object]:
        return ()

    def send(self) -> None:
        values, self._values = self._values, []
        if values:
            self._link.note("metrics", values)


class _ParentLog(logging.Handler):
    """Hands messages to the loggers of the parent, which decides where they go."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self._link = link
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self._loop.call_soon_threadsafe(self._link.note, "log", record.name, record.levelno, text)


class _Worker:
    async def main(self) -> None:
        self._stopped = asyncio.Event()
        self._link = Link(self._answer, lambda name, arguments: None)
        listener, end = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:])
        self._listener = listener
        await self._link.connect(end)
        self._link.closed.add_done_callback(self._end)
        with ExitStack() as stack:
            self._metrics = _ParentMetrics(self._link)
            stack.enter_context(recording(self._metrics))
            await self._stopped.wait()
        self._metrics.send()
        self._link.close()
        await self._link.closed

    def _end(self, _: Any = None) -> None:
        if not self._stopped.is_set():
            # Without the parent nothing can be stored, and its agents' calls are of no use.
            os._exit(1)

    async def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "start":
            await self._start(*arguments)
        elif name == "stop":
            self._server.stop()
            await self._serving
            self._stopped.set()
        elif name in ORDERS:
            ORDERS[name](self._app, *arguments)
        else:
            result = await AWAITED_ORDERS[name](self._app, *arguments)
            self._metrics.send()
            return result
        return None

    async def _start(self, parent_pid: int, pickled: bytes) -> None:
        self._watch(parent_pid)
        settings: WorkerSettings = pickle.loads(pickled)  # noqa: S301 -- from the parent
        logging.basicConfig(level=settings.log_level, handlers=[_ParentLog(self._link)])
        store: Any = _ParentStore(self._link, settings.capabilities)
        self._app = ProxyApp(store, settings.backends, settings.config, settings.upstream_spec)
        for model, version in settings.versions.items():
            self._app.balancer.set_version(version, model)
        if settings.paused:
            self._app.balancer.pause()
        self._server = SocketServer(self._app, PythonServerLauncherArgs())
        self._serving = asyncio.create_task(self._server.run_on(self._listener))
        await asyncio.shield(self._server.ready)
        freeze_memory()

    def _watch(self, parent_pid: int) -> None:
        """End with the parent, even if a forked child of it still holds its end of the link."""
        if not hasattr(os, "pidfd_open"):  # only Linux has it; elsewhere the link must suffice
            return
        try:
            parent = os.pidfd_open(parent_pid)
        except ProcessLookupError:
            self._end()
        else:
            asyncio.get_running_loop().add_reader(parent, self._end)


def main() -> None:
    """Serve until the parent says stop, or is gone."""
    run_in_new_loop(_Worker().main)


if __name__ == "__main__":
    main()
