"""How runners reach the store, and how things get to the processes that they run in."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["Parcel", "Route", "Routes"]


class Parcel:
    """Something that travels by cloudpickle, if it has to be pickled at all (a fork need not)."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __getstate__(self) -> bytes:
        return cloudpickle.dumps(self.content)  # pyright: ignore[reportUnknownMemberType]

    def __setstate__(self, state: bytes) -> None:
        self.content = pickle.loads(state)  # noqa: S301 - written by our own parent


@dataclass
class Route:
    """How a runner reaches the store; pickles for a child process.

    Attributes:
        store: The store itself, if the processes share it.
        url: The store server; or where its URL will be told, once, when it serves.
        patience: Seconds to wait for a lost server.
    """

    store: Parcel
    url: str | Connection[Any, str] = ""
    patience: float = 0.0


class Routes:
    """Routes for runners that may start before their server does.

    Args:
        context: Where processes come from.
        direct: The route of a store that needs no server.
        patience: Seconds that runners wait for a lost server.
    """

    def __init__(self, context: Any, direct: Route | None, patience: float) -> None:
        self._context = context
        self._patience = patience
        self._known = direct
        self._untold: list[Connection[str, Any]] = []

    def next(self) -> Route:
        """Return the route for another runner."""
        if self._known is not None:
            return self._known
        url, tell = self._context.Pipe(duplex=False)
        self._untold.append(tell)
        return Route(Parcel(None), url, self._patience)

    def tell(self, url: str) -> None:
        """Tell everybody the URL of the server."""
        if self._known is None:
            self._known = Route(Parcel(None), url, self._patience)
        for connection in self._untold:
            connection.send(url)
            connection.close()
