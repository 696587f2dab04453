"""Counts and times the requests of the store server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from time import perf_counter
from typing import Any, Final

from agl_core.metrics import Metric, Recorder, record
from agl_serving import Message, Receive, Send
from agl_store_http.server.api import ROUTES

__all__ = ["CLIENT_GONE", "RouteTimes", "measured", "path_label"]

_LABELS: Final = ("path", "method", "status")
_SECONDS: Final = Metric(
    "histogram", "agl.http.latency", "Time of requests.", _LABELS, "s", count="agl.http.total"
)

CLIENT_GONE: Final = 499
"""nginx's status for a client that closed its connection before it had the reply."""
_NO_STATUS: Final = "520"
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_FIXED: Final = frozenset({"", "latest", "search"})
_ID_OF: Final = {
    "rollouts": "{rollout_id}",
    "attempts": "{attempt_id}",
    "resources": "{resources_id}",
    "workers": "{worker_id}",
}
_LABELS_OF_ROUTES: Final = frozenset(route.path_format for route in ROUTES)


async def measured(
    app: Callable[[Message, Receive, Send], Awaitable[Any]],
    scope: Message,
    receive: Receive,
    send: Send,
) -> None:
    """Let an ASGI app answer a request, and record the request."""
    status: str = _NO_STATUS
    sent = gone = False
    started = perf_counter()

    def noted(message: Message) -> Awaitable[None]:
        nonlocal status, sent
        if message["type"] == "http.response.start":
            status = str(message["status"])
        elif not message.get("more_body"):
            sent = True
        return send(message)

    async def watched() -> Message:
        nonlocal gone
        message = await receive()
        gone = gone or (message["type"] == "http.disconnect" and not sent)
        return message

    try:
        await app(scope, watched, noted)
        if gone or not sent:
            status = str(CLIENT_GONE)
    except BaseException as error:
        cancelled = type(error).__name__ == "CancelledError"
        status = str(CLIENT_GONE) if cancelled else type(error).__name__
        raise
    finally:
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        path = path_label(scope["path"])
        record(_SECONDS, perf_counter() - started, path, method, status)


class RouteTimes(dict[int, Recorder]):
    """The recorders of one route, by the status of the reply.

    Args:
        path: The route's path.
        method: Its method.
    """

    def __init__(self, path: str, method: str) -> None:
        super().__init__()
        self._labels = (path, method)
        self.usual = self[200]

    def __missing__(self, status: int) -> Recorder:
        recorder = self[status] = Recorder(_SECONDS, *self._labels, str(status))
        return recorder


@lru_cache(maxsize=4096)
def path_label(path: str) -> str:
    """Return a path with names of ids in place of ids; ``other`` for what no route of the API has.

    A caller may ask for any path, so labels come from the routes alone.
    """
    words = path.split("/")
    for place, word in enumerate(words[:-1]):
        if word in _ID_OF and words[place + 1] not in _FIXED and words[place - 1] != "queues":
            words[place + 1] = _ID_OF[word]
    label = "/".join(words)
    return label if label in _LABELS_OF_ROUTES else "other"
