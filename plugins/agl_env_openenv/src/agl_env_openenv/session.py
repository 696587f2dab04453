"""The client of an environment server: one WebSocket connection is one session.

OpenEnv's own client does the same, but it comes with OpenEnv's servers and their web pages: more
than a hundred packages. It also drops the reason why a server refuses an action, which the model
needs.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from agl_env_openenv.actions import InvalidActionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLOSING: Final = 10.0
"""Longest wait for a server to end a session, in seconds."""
_LARGEST: Final = 100 * 2**20
"""Largest answer, in bytes: that of OpenEnv's own client."""


class SessionError(RuntimeError):
    """A session failed; the message is one line and starts with the address of the server."""


class NoSessionLeftError(SessionError):
    """The server has as many sessions as it allows."""


@dataclass(frozen=True, slots=True)
class Step:
    """The server's answer to a reset or an action."""

    observation: dict[str, Any]
    reward: float | None
    done: bool


class Session:
    """A session of a server, for one task at a time; an asynchronous context manager.

    Args:
        url: Address of the server.
        headers: HTTP headers of the connection.
        timeout: Longest time in seconds that the server may take to answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        self._url = url
        self._headers = headers
        self._timeout = timeout
        self._socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            SessionError: The server cannot be reached.
        """
        try:
            self._socket = await connect(
                "ws" + self._url.removeprefix("http") + "/ws",
                additional_headers=self._headers,
                max_size=_LARGEST,
                open_timeout=self._timeout,
            )
        except (OSError, WebSocketException) as error:
            raise self._failed(f"cannot connect: {error or type(error).__name__}") from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let the server end the session; its slot is free when this returns."""
        if self._socket is None:
            return
        # A server whose environment takes longer to close frees the slot later. A server that is
        # gone has no session to end.
        with suppress(TimeoutError, ConnectionClosed):
            async with asyncio.timeout(_CLOSING):
                await self._socket.send(json.dumps({"type": "close"}))
                await self._socket.wait_closed()
        await self._socket.close()

    async def reset(self, arguments: Mapping[str, Any]) -> Step:
        """Start a task.

        Raises:
            NoSessionLeftError: The server has no session to spare.
            SessionError: The server fails.
        """
        try:
            return await self._call("reset", arguments)
        except InvalidActionError as error:
            raise self._failed(f"does not take the arguments of the reset: {error}") from error

    async def step(self, action: Mapping[str, Any]) -> Step:
        """Take an action.

        Raises:
            InvalidActionError: The action does not fit the server's schema.
            SessionError: The server fails.
        """
        return await self._call("step", action)

    async def _call(self, kind: str, data: Mapping[str, Any]) -> Step:
        assert self._socket is not None
        # A server without a session to spare says so and closes, perhaps before it reads this.
        with suppress(ConnectionClosed):
            await self._socket.send(json.dumps({"type": kind, "data": data}))
        try:
            async with asyncio.timeout(self._timeout):
                answer: dict[str, Any] = json.loads(await self._socket.recv())
        except TimeoutError as error:
            raise self._failed(f"no answer to {kind} in {self._timeout:g} s") from error
        except ConnectionClosed as error:
            raise self._failed(f"the connection broke during {kind}: {error}") from error
        except ValueError as error:
            raise self._failed(f"the answer to {kind} is not JSON") from error
        given: dict[str, Any] = answer.get("data") or {}
        if answer.get("type") == "error":
            raise self._error(given)
        reward = given.get("reward")
        return Step(
            observation=given.get("observation") or {},
            reward=None if reward is None else float(reward),
            done=bool(given.get("done")),
        )

    def _error(self, given: Mapping[str, Any]) -> Exception:
        code, message = given.get("code"), given.get("message", "unknown error")
        if code == "VALIDATION_ERROR":
            problems = [
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in given.get("errors", ())
            ]
            return InvalidActionError("; ".join(problems) or message)
        if code == "CAPACITY_REACHED":
            return NoSessionLeftError(
                f"{self._url}: {message} Raise max_concurrent_envs of the server, or lower the "
                "number of runners."
            )
        return self._failed(f"{message} ({code})")

    def _failed(self, what: str) -> SessionError:
        return SessionError(f"{self._url}: {' '.join(what.split())}")
