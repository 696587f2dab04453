"""Adapts stores that implement only the methods of version 0.3.

Since then claims may wait for work, and queries return a
:class:`~agl_core.types.PaginatedResult`. A class without these is adapted when it is defined, so
callers need not distinguish the two.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from agl_core.types import PaginatedResult
from agl_core.types._copying import construct

_CLAIMS: Final = ("dequeue_rollout", "dequeue_many_rollouts")
_QUERIES: Final = (
    "query_rollouts",
    "query_attempts",
    "query_resources",
    "query_workers",
    "query_spans",
)
_FIRST_PAUSE: Final = 0.02
"""Between the first two looks at a store that cannot wait itself, in seconds; it grows."""
_LONGEST_PAUSE: Final = 1.0
"""Seconds between two claims of a waiting call if the store cannot wake it."""

Method = Callable[..., Coroutine[Any, Any, Any]]


def adapt_methods(cls: type[Any]) -> None:
    """Replace the methods of a store class that have the signature of version 0.3."""
    for name in _CLAIMS:
        method = vars(cls).get(name)
        if inspect.iscoroutinefunction(method) and not _accepts(method, "wait"):
            setattr(cls, name, _with_wait(method))
    for name in _QUERIES:
        method = vars(cls).get(name)
        if inspect.iscoroutinefunction(method) and not _returns_page(method):
            setattr(cls, name, _with_page(method))


def _accepts(method: Method, name: str) -> bool:
    parameters = inspect.signature(method).parameters.values()
    return any(item.name == name or item.kind is item.VAR_KEYWORD for item in parameters)


def _returns_page(method: Method) -> bool:
    # Before the first call only the annotation shows the type; 0.3's contract is a sequence.
    return "PaginatedResult" in str(method.__annotations__.get("return", ""))


def _with_wait(method: Method) -> Method:
    @functools.wraps(method)
    async def call(*args: Any, wait: float = 0.0, **kwargs: Any) -> Any:
        deadline = time.monotonic() + wait
        pause = _FIRST_PAUSE
        while True:
            claimed = await method(*args, **kwargs)
            remaining = deadline - time.monotonic()
            if claimed or remaining <= 0:
                return claimed
            await asyncio.sleep(min(pause, remaining))
            pause = min(2 * pause, _LONGEST_PAUSE)

    return call


def _with_page(method: Method) -> Method:
    @functools.wraps(method)
    async def call(*args: Any, limit: int = -1, offset: int = 0, **kwargs: Any) -> Any:
        items = await method(*args, limit=limit, offset=offset, **kwargs)
        if isinstance(items, PaginatedResult):
            return items  # pyright: ignore[reportUnknownVariableType]
        total = len(items)
        if limit != -1 or offset:
            total = len(await method(*args, limit=-1, offset=0, **kwargs))
        values = {"items": items, "limit": limit, "offset": offset, "total": total}
        return construct(PaginatedResult[Any], values)

    return call
