"""The task server of 0.1: queues tasks, serves them to clients over HTTP, collects rollouts.

::

    server = AgentLightningServer()
    await server.start()
    await server.update_resources({"prompt": PromptTemplate(...)})
    rollout_id = await server.queue_task({"question": "…"}, mode="train")
    rollout = await server.poll_completed_rollout(rollout_id, timeout=60)

Deprecated since 0.2: a store and its server do more. Kept for programs of 0.1.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from agl_core.env import LightningEnvVar
from agl_core.errors import ConfigError
from agl_core.types import NamedResources, RolloutMode
from agl_legacy.task_queue import TaskQueue
from agl_legacy.types import GenericResponse, RolloutLegacy, Task, TaskIfAny
from agl_serving import (
    BrowserGuard,
    ClientGone,
    Headers,
    HTTPError,
    Message,
    PythonServerLauncher,
    PythonServerLauncherArgs,
    Receive,
    Send,
    TokenVerifier,
    accepted_hosts,
    error_details,
    is_loopback,
    read_body,
    send_response,
    while_connected,
)

__all__ = ["AgentLightningServer"]

T = TypeVar("T")

_MAX_BODY_BYTES: Final = 64 * 2**20
"""As the store server has it."""
_MAX_WAIT: Final = 60.0
"""Longest time that a client can wait for a task in one request, in seconds."""
_SCOPES: Final = frozenset({"admin", "algorithm", "runner"})


class AgentLightningServer:
    """Serves tasks and resources to clients of 0.1.

    Not thread-safe: use it in the event loop that starts it.

    Args:
        host: Interface. Any other than loopback needs a token or ``insecure``.
        port: Port; 0 takes a free one.
        task_timeout_seconds: Time after which a claimed task is handed out again.
        auth_token: The server's secret; None takes AGL_AUTH_TOKEN, if that is set.
        insecure: Let a network in without a token.

    Raises:
        ConfigError: The host is reachable from other machines, and nothing protects it.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_timeout_seconds: float = 300.0,
        *,
        auth_token: str | None = None,
        insecure: bool = False,
    ) -> None:
        warnings.warn(
            "AgentLightningServer is deprecated; use a store and LightningStoreServer",
            DeprecationWarning,
            stacklevel=2,
        )
        token = auth_token or os.environ.get(LightningEnvVar.AGL_AUTH_TOKEN) or None
        if not (is_loopback(host) or token or insecure):
            raise ConfigError(
                f"other machines could reach {host}; set AGL_AUTH_TOKEN here and where the "
                "clients run, or pass insecure=True",
                path="host",
            )
        self._queue = TaskQueue(task_timeout_seconds)
        self._news = _News()
        self._app = _TaskApp(self._queue, self._news, token, accepted_hosts(host, ()))
        self._launcher = PythonServerLauncher(
            self._app, PythonServerLauncherArgs(host=host, port=port)
        )

    @property
    def endpoint(self) -> str:
        """URL for clients; with port 0 it is known after the start."""
        return self._launcher.access_endpoint

    async def start(self) -> None:
        """Start serving; LaunchError if the port is taken."""
        self._app.open()
        await self._launcher.start()

    async def stop(self) -> None:
        """Stop serving; idempotent."""
        self._app.close()
        await self._launcher.stop()

    async def run_forever(self) -> None:
        """Start, and serve until cancelled."""
        await self.start()
        try:
            await self._launcher.wait()
        finally:
            await self.stop()

    async def queue_task(
        self,
        sample: Any,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a task; return the id of its rollout.

        Args:
            sample: Input of the agent; JSON.
            mode: ``train``, ``val`` or ``test``.
            resources_id: Resources to run with; None means the latest ones.
            metadata: Anything, for the client.

        Raises:
            ValueError: The sample or the metadata cannot be written as JSON.
        """
        to_json([sample, metadata])
        rollout_id = self._queue.add(sample, mode, resources_id, metadata)
        self._news.announce()
        return rollout_id

    async def update_resources(self, resources: NamedResources) -> str:
        """Set the latest resources; return their id."""
        return self._queue.set_resources(resources)

    async def get_completed_rollout(self, rollout_id: str) -> RolloutLegacy | None:
        """Return a finished rollout and forget it; None if it is not finished."""
        return self._queue.take(rollout_id)

    async def poll_completed_rollout(
        self, rollout_id: str, timeout: float | None = None
    ) -> RolloutLegacy | None:
        """Wait for a rollout, return it and forget it.

        Args:
            rollout_id: Its id.
            timeout: Seconds; None waits without limit.

        Returns:
            The rollout, or None after the timeout.
        """
        return await self._news.wait_for(lambda: self._queue.take(rollout_id), timeout)

    async def retrieve_completed_rollouts(self) -> list[RolloutLegacy]:
        """Return all finished rollouts and forget them."""
        return self._queue.take_all()


class _News:
    """Wakes those who wait for a change of the queue."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for(self, look: Callable[[], T | None], timeout: float | None) -> T | None:
        """Call ``look`` now and after each change, until it returns a value or time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (found := look()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return look()
        return found


class _TaskApp:
    """The routes of 0.1; ``GET /task`` also takes ``wait=<seconds>``.

    Args:
        queue: The state.
        news: Announces changes of the queue.
        token: The secret of the server, if it has one.
        hosts: Names that the Host header may contain.
    """

    def __init__(
        self, queue: TaskQueue, news: _News, token: str | None, hosts: tuple[str, ...]
    ) -> None:
        self._queue = queue
        self._news = news
        self._tokens = TokenVerifier(token) if token else None
        self._guard = None if token else BrowserGuard(hosts)
        self._stopping: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Answer calls from now on; before, they get status 503."""
        self._stopping = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """End the calls that wait."""
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
            except ClientGone:
                return
            except HTTPError as error:
                detail = GenericResponse(status="error", message=str(error.detail))
                body = detail.model_dump_json().encode()
                await send_response(send, error.status, body)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        self._check_caller(headers)
        if self._stopping is None:
            raise HTTPError(503, "the server is not started")
        match scope["method"], scope["path"].strip("/").split("/"):
            case "GET", ["task"]:
                await self._send_task(scope, receive, send, self._stopping)
            case "GET", ["resources", resources_id]:
                found = self._queue.resources(resources_id)
                if found is None:
                    raise HTTPError(404, f"there are no resources {resources_id}")
                await _send(send, found)
            case "POST", ["rollout"]:
                body = await read_body(receive, headers, _MAX_BODY_BYTES)
                try:
                    rollout = RolloutLegacy.model_validate_json(body)
                except ValidationError as error:
                    raise HTTPError(422, error_details(error, "body")) from error
                self._queue.finish(rollout)
                self._news.announce()
                message = f"rollout {rollout.rollout_id} received"
                await _send(send, GenericResponse(status="ok", message=message))
            case _, ["task" | "rollout"] | ["resources", _]:
                raise HTTPError(405, f"{scope['method']} is not allowed here")
            case _:
                raise HTTPError(404, f"there is no {scope['path']}")

    async def _send_task(
        self, scope: Message, receive: Receive, send: Send, stopping: asyncio.Future[None]
    ) -> None:
        wait = _seconds(parse_qs(scope["query_string"].decode("latin-1")).get("wait", ["0"])[-1])
        task = self._queue.claim()
        if task is None and wait > 0:
            work = self._news.wait_for(self._queue.claim, min(wait, _MAX_WAIT))
            task, connected = await while_connected(work, receive, stopping)
            if not connected:
                self._put_back(task)
                return
        try:
            await _send(send, TaskIfAny(is_available=task is not None, task=task))
        except BaseException:
            self._put_back(task)
            raise

    def _put_back(self, task: Task | None) -> None:
        if task is not None:
            self._queue.release(task)
            self._news.announce()

    def _check_caller(self, headers: Headers) -> None:
        if self._guard is not None:
            self._guard.check(headers)
        if self._tokens is not None:
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            identity = self._tokens.identify(token.strip()) if kind.lower() == b"bearer" else None
            if identity is None or identity.scope not in _SCOPES:
                raise HTTPError(401, "this server needs a token: Authorization: Bearer <token>")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise HTTPError(422, f"wait takes seconds, not {text!r}") from error


async def _send(send: Send, model: BaseModel) -> None:
    await send_response(send, 200, model.model_dump_json().encode())
