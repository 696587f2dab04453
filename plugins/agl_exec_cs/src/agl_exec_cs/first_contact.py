"""Waits for a store server that is not there yet: runners may start before their algorithm."""

from __future__ import annotations

import http.client
import logging
import math
import time
import urllib.error
import urllib.request
from typing import Final

from agl_core.errors import StoreUnavailableError, error_text
from agl_core.waits import REMIND_SECONDS, SILENT_SECONDS

__all__ = ["has_port", "server_url", "wait_for_server"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 0.5  # seconds between two probes; a server that starts sends no event
_PROBE_SECONDS: Final = 5.0
"""Longest wait for one answer: a server that is busy answers later than one that is idle."""


_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Takes no proxy of the environment, as the client does not."""


def has_port(server: str) -> bool:
    """Return whether the address of a server has its port: a URL, or ``HOST:PORT``."""
    host, colon, port = server.rpartition(":")
    # The last part of an IPv6 address without brackets is not a port.
    return "://" in server or bool(colon and port.isdecimal() and (":" not in host or "]" in host))


def server_url(server: str, port: int) -> str:
    """Return the URL of a server.

    Args:
        server: Its URL, its host, or ``HOST:PORT``.
        port: Its port, if the address has none.
    """
    if "://" in server:
        return server
    return f"http://{server}" if has_port(server) else f"http://{server}:{port}"


def wait_for_server(url: str, timeout: float | None) -> None:
    """Block until a store server answers, and say so if that takes long.

    Args:
        url: The server's URL.
        timeout: Longest wait, in seconds; None waits as long as it takes.

    Raises:
        StoreUnavailableError: There was no answer in time.
    """
    began = time.monotonic()
    told = began + SILENT_SECONDS
    while True:
        reason = _probe(f"{url.rstrip('/')}/v1/agl/health")
        if reason is None:
            return
        now = time.monotonic()
        if timeout is not None and now - began >= timeout:
            raise StoreUnavailableError(
                f"no store server answered at {url} for {timeout:g} s ({reason}); start the "
                "algorithm there, or wait longer with --connect-timeout"
            )
        if now >= told:
            limit = "Ctrl+C ends the wait" if timeout is None else f"for at most {timeout:g} s"
            logger.info("Waiting for the store server at %s (%s; %s)", url, reason, limit)
            told = now + REMIND_SECONDS
        time.sleep(min(_PAUSE, math.inf if timeout is None else began + timeout - now))


def _probe(url: str) -> str | None:
    """Return why the server is not ready; None if it is."""
    try:
        with _opener.open(url, timeout=_PROBE_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return None if error.code in (401, 403, 404, 421) else f"it answers {error.code}"
    except OSError as error:
        return str(getattr(error, "reason", error))
    except http.client.HTTPException as error:  # something else listens there
        return f"it does not speak HTTP: {error_text(error)}"
