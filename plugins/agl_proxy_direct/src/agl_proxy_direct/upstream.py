"""The interface between the proxy and the code that sends requests to backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from agl_core.genai import Protocol, Route
from agl_proxy_direct.backends import Backend

__all__ = [
    "MAX_RESPONSE_BYTES",
    "Upstream",
    "UpstreamError",
    "UpstreamRequest",
    "UpstreamResponse",
    "too_large",
]

HeaderList = list[tuple[bytes, bytes]]
MAX_RESPONSE_BYTES: Final = 256 * 2**20
"""A response of 100,000 tokens with 20 log-probabilities each is smaller."""


class UpstreamError(Exception):
    """A backend did not return a usable response.

    Args:
        status: HTTP status for the caller.
        message: The failure, for the caller.
        code: Machine-readable code.
        backend_fault: Whether this counts as a failure of the backend.
    """

    def __init__(self, status: int, message: str, code: str, *, backend_fault: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.backend_fault = backend_fault


def too_large(where: str) -> UpstreamError:
    """Return the error for a response that grows past :data:`MAX_RESPONSE_BYTES`."""
    return UpstreamError(
        502, f"{where} sent more than {MAX_RESPONSE_BYTES} bytes", "backend_answer_too_large"
    )


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request to a backend.

    Attributes:
        backend: The backend that gets it.
        endpoint: Path below ``/v1``.
        protocol: Protocol of the body; None for a call that is passed through.
        body: A JSON object, or bytes that are sent unchanged.
        headers: The agent's headers.
        method: HTTP method.
        query: Query string, without the question mark.
        forward_key: Whether a backend without a key of its own gets the agent's.
        route: The path of the agent's call: its protocol, rollout and attempt.
        call: The agent's own request, in the route's protocol; None for a call that is passed
            through.
    """

    backend: Backend
    endpoint: str
    protocol: Protocol | None
    body: dict[str, Any] | bytes | None
    headers: HeaderList
    method: str = "POST"
    query: str = ""
    forward_key: bool = False
    route: Route | None = None
    call: Mapping[str, Any] | None = None


class UpstreamResponse(ABC):
    """A backend's HTTP response. Its body is read once; its reader closes it.

    An implementation ends a body that grows past :data:`MAX_RESPONSE_BYTES` (:func:`too_large`).

    Attributes:
        status: HTTP status.
        headers: The headers that the agent gets.
        streamed: Whether the body is a stream of server-sent events.
        attributes: Further attributes of the call's span.
        recorded: Whether another proxy or tracer records the call. The body is in the agent's
            protocol then; it is relayed unchanged, and no span is stored.
    """

    status: int
    headers: HeaderList
    streamed: bool
    attributes: Mapping[str, Any] = MappingProxyType({})
    recorded: bool = False

    @abstractmethod
    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            UpstreamError: The connection broke before the end.
        """

    @abstractmethod
    def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body's pieces when they arrive.

        Raises:
            UpstreamError: The connection broke before the end.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the connection unless the body was read to its end, which stops the backend."""


class Upstream(ABC):
    """Sends requests to backends. Created and closed in the loop that uses it."""

    @abstractmethod
    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Return the response when its headers have arrived.

        Raises:
            UpstreamError: The backend did not respond.
        """

    @abstractmethod
    def update(self, backends: Iterable[Backend]) -> None:
        """Note the current backends. Calls in flight may still use removed ones."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""
