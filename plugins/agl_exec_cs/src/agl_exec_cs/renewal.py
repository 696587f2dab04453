"""Keeps the token of a process that only starts runners, which renew their own ones."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agl_core.errors import AglError, StoreUnavailableError

if TYPE_CHECKING:
    from agl_exec_cs.events import MultiprocessingEvent
    from agl_store_http import LightningStoreClient

__all__ = ["wait_and_renew"]

logger = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0  # seconds; the end of a run waits for it
_PAUSE: Final = 60.0  # seconds between two tries, if the server is away


def wait_and_renew(stop: MultiprocessingEvent, client: LightningStoreClient | None) -> None:
    """Block until an event is set, and renew the token of a client meanwhile.

    Must not be called in a thread with a running event loop.

    Args:
        stop: The event.
        client: The client whose token replacements of dead runners get; None if there is none.
    """
    due_in = None if client is None else 0.0
    while not stop.wait(due_in):
        due_in = None if client is None else asyncio.run(_renew(client))


async def _renew(client: LightningStoreClient) -> float | None:
    """Renew a client's token; return the seconds until it is due again, None if it never is."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await client.renew_token()
    except (StoreUnavailableError, TimeoutError) as error:
        logger.warning("The token of the runners is not renewed yet: %r", error)
        return _PAUSE
    except AglError as error:
        logger.warning("The token of the runners is not renewed: %s", error)
        return None
    finally:
        await client.close()
