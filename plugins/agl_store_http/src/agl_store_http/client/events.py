"""The event stream of a server (server-sent events, WHATWG HTML, section 9.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from agl_core.errors import StoreUnavailableError
from agl_core.store import StoreEvent
from agl_store_http.client.transport import Transport, refusal

__all__ = ["listen"]

_SILENCE_SECONDS: Final = 60.0
"""The server breaks its silence more often than this; a longer one means that it is gone."""


async def listen(transport: Transport) -> AsyncIterator[StoreEvent]:
    """Yield events until the server stops.

    Raises:
        StoreUnavailableError: The connection broke.
        NotImplementedError: The server's store tells no events.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=transport.connection_timeout, sock_read=_SILENCE_SECONDS
    )
    try:
        async with transport.session().get(transport.url("/events"), timeout=timeout) as response:
            if response.status in (404, 405, 501):
                transport.has_events = False
                raise NotImplementedError(f"the store at {transport.address} tells no events")
            if response.status != 200:
                raise refusal(response.status, await response.read()).as_store_error()
            async for line in response.content:
                if line.startswith(b"data:"):
                    yield StoreEvent.model_validate_json(line[5:])
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise StoreUnavailableError(
            f"the event stream of {transport.address} broke ({error or type(error).__name__})"
        ) from error
