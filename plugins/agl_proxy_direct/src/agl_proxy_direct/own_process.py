"""Runs a proxy's application in a process of its own, beside the process of the run.

The interpreter lock of the run is then free of the proxy's work. The process stores its spans
through this one, over a :class:`Link`: the order of events is that of a proxy in this process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agl_core.errors import AglError, LaunchError
from agl_core.metrics import Metric, record
from agl_core.store import EncodedSpan, LightningStore
from agl_proxy_direct.link import Link, LinkClosedError
from agl_proxy_direct.orders import WorkerSettings
from agl_serving import LOOPBACK, bind_socket, run_in_new_loop

__all__ = ["OwnProcess"]

logger = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
"""Imports from a cold network disk take tens of seconds."""
_CALL_SECONDS: Final = 10.0
"""An order takes milliseconds; a process that is silent this long hangs."""
_KILL_SECONDS: Final = 5.0
"""The kernel takes that long only if the process is stuck in a device."""
_MAX_DEATHS: Final = 3
_DEATHS_SECONDS: Final = 60.0
"""The process is started again unless it died more than ``_MAX_DEATHS`` times in this time."""


class OwnProcess:
    """The process of a proxy, the socket that it serves, and the thread that answers it.

    A process that dies is started again on the same port, with the same backends, versions and
    pause. Calls in flight fail. The spans of calls whose agent got a whole response are in the
    store by then.

    Args:
        host: Interface to listen on; None is loopback.
        port: Port; None takes a free one.
        stop_seconds: Longest time of an orderly stop.
        get_store: Returns the store of the spans; called for each batch.
        get_settings: Returns what a process starts with.

    Attributes:
        port: The bound port.

    Raises:
        LaunchError: The port is taken, or this system cannot pass sockets to a process.
    """

    def __init__(
        self,
        host: str | None,
        port: int | None,
        stop_seconds: float,
        get_store: Callable[[], LightningStore],
        get_settings: Callable[[], WorkerSettings],
    ) -> None:
        if os.name != "posix":
            raise LaunchError("launch_mode='mp' needs Linux or macOS; use launch_mode='thread'")
        self._listener = bind_socket(host or LOOPBACK, port)
        self.port: int = self._listener.getsockname()[1]
        self._stop_seconds = stop_seconds
        self._get_store = get_store
        self._get_settings = get_settings
        self._metrics: dict[str, Metric] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._link: asyncio.Future[Link] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stopping = False
        self._failed = False
        # Calls of the store come from it, as they come from the server's thread of a proxy that
        # runs in a thread.
        self._thread = threading.Thread(target=self._run, name="agl-server-link", daemon=True)

    async def start(self) -> None:
        """Start the process; return when it serves.

        Raises:
            LaunchError: It did not start.
        """
        self._thread.start()
        try:
            await asyncio.wrap_future(self._started)
        except asyncio.CancelledError:
            await asyncio.shield(self.stop())  # nobody has this object yet who could stop it
            raise

    async def stop(self) -> None:
        """Let the process finish calls and store spans, and end it."""
        self._stopping = True
        link = self._link
        serves = self._thread.is_alive() and link is not None and link.done()
        try:
            if serves and link is not None and link.exception() is None:
                stop = self._in_thread(link.result().request("stop"))
                with contextlib.suppress(LinkClosedError, TimeoutError):
                    async with asyncio.timeout(self._stop_seconds):
                        await asyncio.wrap_future(stop)
        finally:
            while self._thread.is_alive():  # it may just have started the process again
                await asyncio.to_thread(self._end_process)
                await asyncio.to_thread(self._thread.join, 1.0)

    def is_running(self) -> bool:
        return self._thread.is_alive() and not (self._stopping or self._failed)

    def call(self, order: str, *arguments: Any) -> None:
        """Give an order, and return when it was carried out. Blocks.

        Raises:
            LaunchError: The process did not answer, as while it is started again. The order is not
                carried out later.
        """
        carried_out = self._in_thread(self._order(order, arguments))
        try:
            carried_out.result(_CALL_SECONDS)
        except TimeoutError:
            carried_out.cancel()
            raise LaunchError(
                f"the proxy's process has not answered for {_CALL_SECONDS:g} s; try again"
            ) from None

    async def request(self, order: str, *arguments: Any) -> Any:
        """Give an order, and return its result."""
        return await asyncio.wrap_future(self._in_thread(self._order(order, arguments)))

    def _in_thread(self, work: Any) -> concurrent.futures.Future[Any]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _order(self, order: str, arguments: tuple[Any, ...]) -> Any:
        while True:
            assert self._link is not None
            link = await asyncio.shield(self._link)
            try:
                return await link.request(order, *arguments)
            except LinkClosedError:
                if self._stopping:
                    raise
                # The next round waits until the process has been started again.
                await asyncio.sleep(0)

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            run_in_new_loop(self._serve)
        except Exception as error:
            if not self._started.done():
                self._started.set_exception(error)
            elif not self._failed:
                logger.exception("the proxy at port %d has ended", self.port)
        finally:
            self._end_process(kill=True)
            self._listener.close()

    async def _serve(self) -> None:
        """Keep a process running until :meth:`stop`."""
        self._loop = asyncio.get_running_loop()
        deaths: deque[float] = deque(maxlen=_MAX_DEATHS + 1)
        self._link = self._loop.create_future()
        while True:
            try:
                link = await self._start_process()
            except BaseException as error:
                self._fail(error)
                raise
            self._link.set_result(link)
            if not self._started.done():
                self._started.set_result(None)
            await link.closed
            if self._stopping:
                return
            self._link = self._loop.create_future()
            code = await asyncio.to_thread(self._end_process, kill=True)
            deaths.append(time.monotonic())
            if len(deaths) > _MAX_DEATHS and deaths[-1] - deaths[0] < _DEATHS_SECONDS:
                error = LaunchError(
                    f"the proxy's process died {len(deaths)} times in a minute, last with exit "
                    f"code {code}; its log says why"
                )
                self._fail(error)
                raise error
            logger.error("the proxy's process died (exit code %s); starting it again", code)

    def _fail(self, error: BaseException) -> None:
        """Make waiting and later orders raise an error."""
        assert self._link is not None
        self._failed = True
        if self._started.done():
            logger.error("the proxy at port %d has ended: %s", self.port, error)
        self._link.set_exception(error)
        self._link.exception()  # maybe no order awaits it

    async def _start_process(self) -> Link:
        here, there = socket.socketpair()
        fds = (self._listener.fileno(), there.fileno())
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        try:
            # Of this interpreter; blocks only the link's loop, whose orders need the process.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603
                [sys.executable, "-P", "-m", "agl_proxy_direct.worker", *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl+C must reach the run only, which then stops this process in order.
                start_new_session=True,
            )
        except OSError as error:  # no memory or no process is left
            here.close()
            raise LaunchError(f"the proxy's process cannot be started: {error}") from error
        finally:
            there.close()
        link = Link(self._answer, self._listen)
        await link.connect(here)
        try:
            settings = pickle.dumps(self._get_settings())
            async with asyncio.timeout(_START_SECONDS):
                await link.request("start", os.getpid(), settings)
        except BaseException as error:
            code = await asyncio.to_thread(self._end_process, kill=not link.closed.done())
            link.close()
            if isinstance(error, LinkClosedError):
                raise LaunchError(f"the proxy's process ended at its start, code {code}") from None
            if isinstance(error, TimeoutError):
                seconds = f"{_START_SECONDS:g} s"
                raise LaunchError(f"the proxy's process did not start within {seconds}") from None
            if isinstance(error, (AglError, AttributeError, TypeError, pickle.PicklingError)):
                message = f"the proxy cannot run in a process of its own: {error}"
                raise LaunchError(message) from error
            raise
        return link

    def _end_process(self, *, kill: bool = False) -> int | None:
        """End the process and return its exit code.

        It has :data:`_KILL_SECONDS` to end by itself, or none with ``kill``.
        """
        process = self._process
        if process is None:
            return None
        if not kill:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_KILL_SECONDS)
        process.kill()
        return process.wait()

    # -- what the process asks for ---------------------------------------------------------------

    async def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        store = self._get_store()
        (content,) = arguments
        if name == "sequence_ids":
            return await store.get_many_span_sequence_ids(content)
        if name == "query_spans":
            rollout_id, attempt_id, span_name = content
            return await store.query_spans(rollout_id, attempt_id, name=span_name)
        if name == "spans":
            await store.add_encoded_spans([EncodedSpan(*values) for values in content])
        elif name == "probe":  # whether the store answers
            await store.get_rollout_by_id(content)
        else:
            raise LookupError(name)
        return None

    def _listen(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "log":
            source, level, text = arguments
            logging.getLogger(source).log(level, "%s", text)
            return
        for metric, value, labels in arguments[0]:
            # Backends keep each object of a metric, and every note has objects of its own.
            record(self._metrics.setdefault(metric.name, metric), value, *labels)
