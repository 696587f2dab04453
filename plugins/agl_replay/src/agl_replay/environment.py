"""The endpoint of agents that read it from the environment, which all threads of a process share.

One replay at a time has its turn to set it; others wait, in whatever thread their event loop is.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Final

from agl_core.types import LLM, NamedResources

__all__ = ["Environment", "environment_for", "names_a_model"]

_BASE_URLS: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_KEYS: Final = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")

_lock: Final = threading.Lock()
"""Held for changes of the queue only."""
_queue: Final[deque[Future[None]]] = deque()
"""The replay that has its turn, then those that wait; the result of a future says that it came."""


class Environment:
    """The variables from which OpenAI's and Anthropic's clients read their endpoint."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set_endpoint(self, base_url: str) -> None:
        """Let clients that are made from now on call a server.

        Args:
            base_url: Base URL that ends in ``/v1``.
        """
        values = {
            **dict.fromkeys(_BASE_URLS, base_url),
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            # The clients refuse to start without a key.
            **{name: os.environ.get(name) or "none" for name in _KEYS},
        }
        self._before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)

    def restore(self) -> None:
        """Give the variables the values back that they had."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def names_a_model(resources: NamedResources) -> bool:
    """Return whether an agent finds its model in its resources, so not in the environment."""
    return any(isinstance(one, LLM) for one in resources.values())


@asynccontextmanager
async def environment_for(resources: NamedResources) -> AsyncGenerator[Environment | None]:
    """Yield the environment for the replay of an agent that needs it, when its turn has come.

    The turn ends with the context and not with the agent, which may hang in its thread.

    Args:
        resources: The agent's resources; one with a model needs no environment, so gets None.
    """
    if names_a_model(resources):
        yield None
        return
    turn: Future[None] = Future()
    with _lock:
        _queue.append(turn)
        _tell_first()
    try:
        await asyncio.wrap_future(turn)
        environment = Environment()
        try:
            yield environment
        finally:
            environment.restore()
    finally:
        with _lock:
            _queue.remove(turn)
            _tell_first()


def _tell_first() -> None:
    """Tell the first of the queue that it has its turn, unless it knows or was cancelled."""
    if not _queue or _queue[0].done():
        return
    if _queue[0].set_running_or_notify_cancel():
        _queue[0].set_result(None)
