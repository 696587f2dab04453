"""Who answers: what a proxy asks of its backends, whatever stands behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any

from agl_core.genai import Protocol
from agl_proxy_direct.backends import Backend

__all__ = ["Answer", "Outgoing", "Upstream", "UpstreamError"]

HeaderList = list[tuple[bytes, bytes]]


class UpstreamError(Exception):
    """A backend did not answer a call as it should.

    Args:
        status: HTTP status that tells the caller.
        message: What happened.
        code: A word for programs.
        backend_fault: Whether the backend should be thought less of.
    """

    def __init__(self, status: int, message: str, code: str, *, backend_fault: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.backend_fault = backend_fault


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request on its way to a backend.

    Attributes:
        backend: Who gets it.
        endpoint: Path below ``/v1``.
        protocol: What the body is written in; None for a call that is only passed on.
        body: A JSON object, or bytes to be sent as they are.
        headers: The agent's headers.
        method: HTTP method.
        query: Query string, without the question mark.
        forward_key: Whether a backend without a key of its own is shown the agent's.
    """

    backend: Backend
    endpoint: str
    protocol: Protocol | None
    body: dict[str, Any] | bytes | None
    headers: HeaderList
    method: str = "POST"
    query: str = ""
    forward_key: bool = False


class Answer(ABC):
    """A backend's response, as HTTP has it. Its body is read once, and it is closed by its reader.

    Attributes:
        status: HTTP status.
        headers: What of the response's headers the agent gets.
        streamed: Whether the body is a stream of server-sent events.
    """

    status: int
    headers: HeaderList
    streamed: bool

    @abstractmethod
    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            UpstreamError: It did not come whole.
        """

    @abstractmethod
    def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes.

        Raises:
            UpstreamError: It did not come whole.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of it; a body that is not read to its end ends the call at the backend."""


class Upstream(ABC):
    """Sends requests to backends. Created and closed in the loop that uses it."""

    @abstractmethod
    async def send(self, request: Outgoing) -> Answer:
        """Return the response once its headers are there.

        Raises:
            UpstreamError: There is none.
        """

    @abstractmethod
    def update(self, backends: Iterable[Backend]) -> None:
        """Take note of the backends that there are from now on; those that go may still be used."""

    @abstractmethod
    async def close(self) -> None:
        """Close what is open."""
