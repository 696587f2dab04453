"""The ways in which runners reach the store."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agl_core.store import innermost
from agl_exec_cs.pickling import CloudPickled

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from agl_core.store import LightningStore
    from agl_store_http import LightningStoreClient

__all__ = ["StoreAccess", "UrlPublisher", "server_of"]


@dataclass
class StoreAccess:
    """How a runner reaches the store; picklable for a child process.

    Attributes:
        shared: Holds the store itself if processes can share it, else None.
        url: URL of the store server, or the pipe that carries the URL once the server is ready.
        reconnect_timeout: Longest wait for a lost server, in seconds.
        client: This process's client of the server, which renews the token; None if it has none.
    """

    shared: CloudPickled
    url: str | Connection[Any, str] = ""
    reconnect_timeout: float = 0.0
    client: LightningStoreClient | None = field(default=None, repr=False)

    @property
    def token(self) -> str | None:
        """The access token for the server, as it is now; None reads ``AGL_AUTH_TOKEN``."""
        return None if self.client is None else self.client.auth_token

    @classmethod
    def direct(cls, store: LightningStore) -> StoreAccess:
        """Return the access to a store that processes can share."""
        return cls(CloudPickled(store), client=_client_of(store))

    @classmethod
    def over_http(cls, url: str | Connection[Any, str], reconnect_timeout: float) -> StoreAccess:
        """Return the access to a store server."""
        return cls(CloudPickled(None), url, reconnect_timeout)

    @classmethod
    def with_client(cls, client: LightningStoreClient, reconnect_timeout: float) -> StoreAccess:
        """Return the access to the server of a client, with the client's token."""
        return cls(CloudPickled(None), client.server_address_root, reconnect_timeout, client)


def server_of(store: LightningStore, reconnect_timeout: float) -> StoreAccess | None:
    """Return the access to the server that keeps the data of a store; None if none does.

    Its runners call that server, whatever is in the list of the store here.

    Args:
        store: The store.
        reconnect_timeout: Longest wait of a runner for a lost server, in seconds.
    """
    client = _client_of(store)
    return None if client is None else StoreAccess.with_client(client, reconnect_timeout)


def _client_of(store: LightningStore) -> LightningStoreClient | None:
    from agl_store_http import LightningStoreClient

    end = innermost(store)
    return end if isinstance(end, LightningStoreClient) else None


class UrlPublisher:
    """Creates the access of runners that may start before the store server does.

    Args:
        context: Starts the processes (``multiprocessing.get_context``).
        known: The access of all runners, if no server has to start first.
        reconnect_timeout: Longest wait of a runner for a lost server, in seconds.
    """

    def __init__(self, context: Any, known: StoreAccess | None, reconnect_timeout: float) -> None:
        self._context = context
        self._known = known
        self._reconnect_timeout = reconnect_timeout
        self._waiting: list[Connection[str, Any]] = []

    def new_access(self) -> StoreAccess:
        """Return the access for another runner."""
        if self._known is not None:
            return self._known
        reader, writer = self._context.Pipe(duplex=False)
        self._waiting.append(writer)
        return StoreAccess.over_http(reader, self._reconnect_timeout)

    def publish(self, url: str) -> None:
        """Send the URL of the server to every runner, started or not."""
        if self._known is None:
            self._known = StoreAccess.over_http(url, self._reconnect_timeout)
        for connection in self._waiting:
            with connection, suppress(BrokenPipeError):  # a runner that died is replaced
                connection.send(url)
