"""Tells failures of the infrastructure from failures of the agent.

An agent's calls go to the proxy directly. If the proxy restarts, the agent's client raises a
connection error, as it would for any other server that the agent uses. So the proxy is asked: it
was away if it does not answer, or if it began to serve after the attempt did. Such a failure says
nothing about the agent: the store runs the task again, once the proxy serves.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from agl_core.errors import AgentError, StoreFullError, StoreUnavailableError
from agl_core.proxy import PROXY_PATIENCE
from agl_core.semconv import INFRASTRUCTURE_CODES, INFRASTRUCTURE_HEADER
from agl_core.types import ProxyLLM
from agl_runner.snapshots import Snapshots

if TYPE_CHECKING:
    from agl_core.proxy import ProxyMove
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_PROBE_SECONDS: Final = 5.0
"""Longest wait for one answer: a proxy that is busy answers later than one that is idle."""
_LOOK_SECONDS: Final = 2.0
"""Between two reads of the resources of an attempt whose proxy is away."""
_FIRST_PAUSE: Final = 0.1
"""Between the first two probes, in seconds; it grows to the next constant."""
_LONGEST_PAUSE: Final = 1.0
_MOST_CAUSES: Final = 64
"""Errors of a chain that are looked at: chains may have loops."""
_LOST: Final = frozenset(
    {
        "APIConnectionError",  # openai, anthropic
        "ClientConnectionError",  # aiohttp, and its subclasses
        "ClientPayloadError",
        "ConnectError",  # httpx
        "ProtocolError",  # urllib3
        "ReadError",
        "RemoteProtocolError",
        "WriteError",
    }
)
"""Names of the errors, other than ConnectionError, by which clients say that the connection to a
server failed. These libraries are not imported here."""


def was_reported(error: BaseException) -> str | None:
    """Return what reported an agent's error as its own: ``proxy``, ``store`` or None."""
    for one in _causes(error):
        if isinstance(one, StoreUnavailableError | StoreFullError):
            return "store"
        # A stream that has begun ends with an event that has a code and no headers.
        if INFRASTRUCTURE_HEADER in _headers_of(one) or _code_of(one) in INFRASTRUCTURE_CODES:
            return "proxy"
    return None


def lost_connection(error: BaseException) -> bool:
    """Return whether a connection of the agent's failed, to whatever server."""
    return any(
        isinstance(one, ConnectionError | http.client.IncompleteRead)
        or not _LOST.isdisjoint(base.__name__ for base in type(one).__mro__)
        for one in _causes(error)
    )


def proxies_of(resources: Mapping[str, Any]) -> list[str]:
    """Return the URLs of the proxies of these resources, without their paths."""
    urls = (urlsplit(one.endpoint) for one in resources.values() if isinstance(one, ProxyLLM))
    return list(dict.fromkeys(f"{url.scheme}://{url.netloc}" for url in urls))


async def find_away(proxies: Iterable[str], since: float) -> str | None:
    """Return the first proxy that is away, or was since a time.

    Args:
        proxies: URLs of the proxies, without a path.
        since: Monotonic seconds.
    """
    for url in proxies:
        uptime = await _uptime(url)
        if uptime is None or uptime < time.monotonic() - since:
            return url
    return None


async def wait_for(url: str, move: ProxyMove) -> bool:
    """Wait until a proxy serves; return whether it does. The wait ends when the proxy has moved.

    Args:
        url: URL of the proxy, without a path.
        move: Says whether it has.
    """
    deadline = time.monotonic() + PROXY_PATIENCE
    pause = _FIRST_PAUSE
    while await _uptime(url) is None:
        if pause == _FIRST_PAUSE:
            logger.warning("the proxy at %s is away; its agents' tasks wait for it", url)
        if move.has_happened():
            logger.warning("the proxy at %s is at another address now", url)
            return False
        if time.monotonic() + pause > deadline:
            logger.error("the proxy at %s has been away for %.0f s", url, PROXY_PATIENCE)
            return False
        await asyncio.sleep(pause)  # another machine's process gives no sign that it starts
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return True


async def find_move(
    store: LightningStore, resources_id: str | None, proxies: Sequence[str], move: ProxyMove
) -> None:
    """Set a move once the resources of an attempt name other proxies than those it was given.

    Args:
        store: The store of the resources.
        resources_id: Their snapshot; None means the latest one.
        proxies: URLs of the attempt's proxies, without their paths.
        move: What the attempt's model calls look at.
    """
    while True:
        try:
            resources = await Snapshots(store).get(resources_id)
        except StoreUnavailableError as error:
            logger.warning("the resources of a waiting attempt cannot be read: %s", error)
        else:
            if resources is not None and not set(proxies) <= set(proxies_of(resources)):
                move.set()
                return
        await asyncio.sleep(_LOOK_SECONDS)  # stores of others may not tell what changes


def is_the_agents(error: BaseException) -> bool:
    """Return whether an error is the agent's whatever its causes: it was stopped, or must end."""
    return isinstance(error, AgentError) or not isinstance(error, Exception)


async def _uptime(url: str) -> float | None:
    """Return for how many seconds a proxy has served; infinity if it does not say, None if away."""
    return await asyncio.to_thread(_ask, url)


def _ask(url: str) -> float | None:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.netloc, timeout=_PROBE_SECONDS)
    except http.client.InvalidURL:  # no proxy of ours is there
        return float("inf")
    try:
        connection.request("GET", "/health")
        answer: Any = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException):
        return None
    except ValueError:  # another server than ours
        return float("inf")
    finally:
        connection.close()
    said = cast("dict[str, Any]", answer).get("uptime") if isinstance(answer, dict) else None
    return float(said) if isinstance(said, int | float) else float("inf")


def _headers_of(error: BaseException) -> Any:
    """Return the headers of the reply that an error of an HTTP client is about; () without one."""
    response = getattr(error, "response", None)  # of requests: false if its status is an error
    headers: Any = getattr(error if response is None else response, "headers", None)
    return headers if hasattr(headers, "keys") else ()


def _code_of(error: BaseException) -> str | None:
    """Return the code that an error of OpenAI's or Anthropic's client has from the server."""
    body: Any = getattr(error, "body", None)
    code: Any = getattr(error, "code", None) if hasattr(error, "body") else None
    if code is None and isinstance(body, dict):
        said: Any = cast("dict[str, Any]", body).get("error")
        code = cast("dict[str, Any]", said).get("code") if isinstance(said, dict) else None
    return code if isinstance(code, str) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it: what it was raised from, raised in, or groups."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo and len(seen) < _MOST_CAUSES:
        one = todo.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += cast("BaseExceptionGroup[BaseException]", one).exceptions
