"""The history of a named run: its parts, its metrics over steps, and how it ended.

It is a checkpoint under ``history:<name>``: every store serves it, and agents never receive it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from agl_core.errors import AglError
from agl_core.plugins import add_listener, hookimpl, remove_listener
from agl_core.types import Checkpoint

if TYPE_CHECKING:
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_KEY: Final = "history"
_MOST_POINTS: Final = 512
"""Points of a curve, more than a chart has columns. At the limit half of them are dropped."""
_QUICKEST_SECONDS: Final = 0.25
"""Shortest pause between two writes: soon enough for who watches."""
_HEARTBEAT_SECONDS: Final = 30.0
"""Longest pause between two writes: tells a run that goes on from one that died."""
_CLOSING_SECONDS: Final = 5.0
"""Longest last write, in seconds: a store that is gone does not keep a run from its end."""
_current: contextvars.ContextVar[RunHistory | None] = contextvars.ContextVar("agl", default=None)


class RunHistory:
    """Keeps the steps that the algorithm of one run reports, and writes them to the store.

    Of each metric at most 512 points are kept, evenly spaced, and the newest. Points after the
    step that a run resumes from are dropped.

    Args:
        store: Keeps the history.
        run: Name of the run.
        about: Parts of the run and how it is resumed, a JSON object for people.
    """

    def __init__(self, store: LightningStore, run: str, about: Mapping[str, Any]) -> None:
        self._store = store
        self._id = f"history:{run}"
        self._state: dict[str, Any] = {**about, "status": "running", "error": None, "ended": None}
        self._rows: list[tuple[int, dict[str, float]]] = []
        self._stride = 1
        self._lock = threading.Lock()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[None]:
        """Record the steps that are reported inside the block, and how the block ends."""
        await self._read()
        await self._write()
        token = _current.set(self)
        name = add_listener(self)
        writer = asyncio.create_task(self._write_changes(), name="agl-run-history")
        try:
            yield
            self._state["status"] = "finished"
        except Exception as error:
            self._state |= {"status": "failed", "error": f"{type(error).__name__}: {error}"[:2000]}
            raise
        except BaseException:
            self._state["status"] = "interrupted"
            raise
        finally:
            remove_listener(name)
            _current.reset(token)
            writer.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSING_SECONDS):
                await asyncio.wait({writer})
                self._state["ended"] = time.time()
                await self._write()

    @hookimpl
    def algorithm_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a step; two reports of a step are merged. Thread-safe."""
        if _current.get() is not self:
            return  # a step of another run in this process
        values = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        with self._lock:
            rows = self._rows
            while rows and rows[-1][0] > step:
                rows.pop()
            if rows and rows[-1][0] == step:
                rows[-1][1].update(values)
            else:
                if rows and (rows[-1][0] - rows[0][0]) % self._stride:
                    rows.pop()  # it was kept as the newest
                rows.append((step, values))
            while len(rows) > _MOST_POINTS:
                self._stride *= 2
                first, last = rows[0][0], rows[-1][0]
                rows[:] = [r for r in rows if r[0] == last or (r[0] - first) % self._stride == 0]
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _read(self) -> None:
        stored = await self._store.get_resources_by_id(self._id)
        found = None if stored is None else stored.resources.get(_KEY)
        if isinstance(found, Checkpoint):
            series: dict[str, list[float | None]] = found.state["series"]
            for at, step in enumerate(found.state["steps"]):
                row = ((name, column[at]) for name, column in series.items())
                self._rows.append((step, {name: value for name, value in row if value is not None}))
            self._stride = found.state["stride"]

    async def _write_changes(self) -> None:
        while True:
            with anyio.move_on_after(_HEARTBEAT_SECONDS):
                await self._changed.wait()
            began = time.monotonic()
            await self._write()
            # At most a twentieth of the time goes into writing.
            await asyncio.sleep(max(_QUICKEST_SECONDS, 20 * (time.monotonic() - began)))

    async def _write(self) -> None:
        self._changed.clear()
        with self._lock:
            last = {name: value for _, values in self._rows for name, value in values.items()}
            series = {name: [_short(row.get(name)) for _, row in self._rows] for name in last}
            steps = [step for step, _ in self._rows]
        self._state |= {"steps": steps, "series": series, "stride": self._stride}
        checkpoint = Checkpoint(state=self._state, metrics=last)
        try:
            await self._store.update_resources(self._id, {_KEY: checkpoint})
        except AglError as error:
            # The run does not depend on its history; the next write holds everything again.
            logger.warning("The history of the run is not written: %s", error)


def _short(value: float | None) -> float | None:
    """Round to 6 digits: curves do not show more."""
    return None if value is None else float(f"{value:.6g}")
