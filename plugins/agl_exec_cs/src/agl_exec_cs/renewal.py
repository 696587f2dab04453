"""Keeps the token of a process that only starts runners, which renew their own ones."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pydantic_core import from_json

from agl_core.errors import AglError, StoreUnavailableError

if TYPE_CHECKING:
    from agl_exec_cs.events import MultiprocessingEvent
    from agl_store_http import LightningStoreClient

__all__ = ["wait_and_renew"]

logger = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0  # seconds; nobody waits for the end of the run longer than that
_PAUSE: Final = 60.0  # seconds between two tries, if the server is away
_RENEWED_AFTER: Final = 0.5  # of a token's life, as in the client


def wait_and_renew(stop: MultiprocessingEvent, client: LightningStoreClient | None) -> None:
    """Block until an event is set, and renew the token of a client meanwhile.

    Must not be called in a thread with a running event loop.

    Args:
        stop: The event.
        client: The client whose token replacements of dead runners get; None if there is none.
    """
    seconds: float | None = 0.0 if client is not None and client.auth_token else None
    while not stop.wait(seconds):
        seconds = None if client is None else asyncio.run(_renew(client))


async def _renew(client: LightningStoreClient) -> float | None:
    """Renew the token of a client; return the seconds until the next time, None if there is none.

    The client renews before a call if that is due. This call tells how long a new token holds.
    """
    try:
        async with asyncio.timeout(_TIMEOUT):
            seconds = from_json((await client.call("POST", "/token")).body)["seconds"]
    except (StoreUnavailableError, TimeoutError) as error:
        logger.warning("The token of the runners is not renewed yet: %r", error)
        return _PAUSE
    except AglError as error:  # another scope, or an older server: the token holds until it ends
        logger.debug("The token of the runners is not renewed: %s", error)
        return None
    finally:
        await client.close()
    return None if seconds is None else float(seconds) * _RENEWED_AFTER
