"""MCP sessions whose answers are recorded, and repeated in a replay: :class:`RecordedSession`."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self

from agl_core.emitter import operation
from agl_core.plugins import missing_package

try:
    from mcp import ClientSession
except ModuleNotFoundError as error:
    if error.name != "mcp":
        raise
    raise missing_package("agl_replay.mcp", "agl-replay", extra="mcp") from error

__all__ = ["RecordedSession"]

_RECORDED: Final = frozenset(
    {
        "call_tool",
        "get_prompt",
        "list_prompts",
        "list_resource_templates",
        "list_resources",
        "list_tools",
        "read_resource",
    }
)


class RecordedSession:
    """An MCP client session that a replay answers without its server.

    ::

        @asynccontextmanager
        async def connect():
            async with stdio_client(server) as streams, ClientSession(*streams) as session:
                await session.initialize()
                yield session

        async with RecordedSession(connect) as session:
            await session.call_tool("search", {"query": "agl"})

    Calls of tools, prompts and resources are operations ``mcp.call_tool``, …, with
    ``record=True``. The connection is opened by the first call that is not answered from a
    recording, so a replay starts no server. Other methods and attributes are not offered. For one
    event loop; tasks may share it.

    Args:
        connect: Opens an initialized session.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[ClientSession]]) -> None:
        self._connect = connect
        self._owner: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[ClientSession] | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._owner is not None:
            await self._owner

    def __getattr__(self, name: str) -> Any:
        if name not in _RECORDED:
            raise AttributeError(f"a recorded MCP session has no {name!r}")
        found = self.__dict__[name] = operation(name=f"mcp.{name}", record=True)(self._call(name))
        return found

    def _call(self, name: str) -> Callable[..., Any]:
        declared = getattr(ClientSession, name)

        @functools.wraps(declared)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await getattr(await self._session(), name)(*args, **kwargs)

        signature = inspect.signature(declared)
        parameters = list(signature.parameters.values())[1:]  # without self
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    async def _session(self) -> ClientSession:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            # The task that opens an MCP session has to close it, and calls come from any task.
            self._owner = asyncio.create_task(self._own(self._opened))
        return await asyncio.shield(self._opened)

    async def _own(self, opened: asyncio.Future[ClientSession]) -> None:
        try:
            async with self._connect() as session:
                opened.set_result(session)
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
