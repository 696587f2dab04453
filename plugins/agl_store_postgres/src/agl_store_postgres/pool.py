"""Connections to the server, and transactions that take effect once.

A connection can break at any moment. Before COMMIT was sent, the server has rolled the transaction
back, and it is run again. If the connection breaks during COMMIT, the outcome is unknown to the
client, so the server is asked for it by the transaction's id
(https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-SNAPSHOT).

The pool keeps no state in a connection: any statement may run on another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper

from agl_core.errors import StoreDataError, StoreUnavailableError
from agl_store_postgres.config import PostgresConfig
from agl_store_postgres.errors import is_conflict, is_refusal, is_unavailable
from agl_store_postgres.schema import create_partition, migrate
from agl_store_postgres.transaction import Statement, Transaction, pipelined

__all__ = ["Connection", "Pool", "Rows", "address_of", "qualified"]

T = TypeVar("T")
Connection = AsyncConnection[tuple[Any, ...]]
Rows = list[tuple[Any, ...]]

_RETRY_SECONDS: Final = 0.05
"""Between two tries of what a server refuses now, and two looks at a commit whose outcome is not
known yet. Nothing tells when to look again."""
_DEFAULTS: Final = {
    "application_name": "agl",
    # A server whose machine is gone sends nothing; the system's own limit is two hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # No keepalives are sent while a statement waits to be acknowledged; there Linux gives up after
    # 15 minutes. In milliseconds.
    "tcp_user_timeout": "30000",
}
# What libpq says quotes the text that it cannot read, which may be the password.
_WRONG_URI: Final = (
    "the PostgreSQL connection string is wrong; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    " with special characters percent-encoded (%40 for @, %2F for /, %25 for %), or KEY=VALUE pairs"
)


def qualified(schema: str) -> Callable[[str], bytes]:
    """Return the function that puts the schema into a statement in place of ``@``."""

    @cache
    def qualify(statement: str) -> bytes:
        return statement.replace("@", f'"{schema}".').encode()

    return qualify


def address_of(uri: str) -> str:
    """Return the server's address and the database, for messages: no credentials.

    Raises:
        StoreDataError: The connection string is wrong.
    """
    try:
        parts = conninfo_to_dict(uri)
    except psycopg.ProgrammingError:
        raise StoreDataError(_WRONG_URI) from None
    # A part of the password may be taken for one of these. A first @ is that of an abstract socket.
    if any("@" in str(parts.get(name))[1:] for name in ("host", "port", "dbname")):
        raise StoreDataError(_WRONG_URI)
    host = parts.get("host") or parts.get("hostaddr") or "the local socket"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{host}{port}/{parts.get('dbname') or ''}"


class Pool:
    """The connections of one process. Belongs to one event loop.

    Args:
        config: The store's configuration.
    """

    def __init__(self, config: PostgresConfig) -> None:
        self.address = address_of(config.uri)
        self.qualify = qualified(config.schema_name)
        self._config = config
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(config.max_connections)
        self._prepared = False
        self._preparing = asyncio.Lock()

    # -- connections -----------------------------------------------------------------------------

    async def connect(self, uri: str, seconds: float) -> Connection:
        """Open a connection in autocommit mode, trying again for a while.

        Args:
            uri: The connection string.
            seconds: For how long to try.
        """
        deadline = time.monotonic() + seconds
        parameters = {**_DEFAULTS, **conninfo_to_dict(uri)}
        # PgBouncer before 1.21 gives a prepared statement to another client.
        threshold = None if self._config.listen_uri else 3
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                connection = await asyncio.wait_for(
                    AsyncConnection.connect(
                        **parameters, autocommit=True, prepare_threshold=threshold
                    ),
                    max(left, _RETRY_SECONDS),
                )
            except TimeoutError:
                raise StoreUnavailableError(
                    f"PostgreSQL at {self.address} does not reply"
                ) from None
            except psycopg.OperationalError as error:
                if is_refusal(error) or left <= _RETRY_SECONDS:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                # One type for all integers, so that a statement is prepared once.
                connection.adapters.register_dumper(int, Int8BinaryDumper)
                return connection

    async def _take(self, deadline: float) -> Connection:
        """Return a connection for exclusive use; pass it to :meth:`_give`."""
        await self._free.acquire()
        try:
            if self._idle:
                return self._idle.pop()
            left = max(deadline - time.monotonic(), 0.0)
            connection = await self.connect(self._config.uri, left)
            if not self._prepared:
                await self._prepare(connection)
        except BaseException:
            self._free.release()
            raise
        return connection

    async def _prepare(self, connection: Connection) -> None:
        try:
            async with self._preparing:
                if not self._prepared:
                    await migrate(connection, self.qualify, self.address)
                    self._prepared = True
        except BaseException:
            await connection.close()
            raise

    async def _give(self, connection: Connection, *, usable: bool) -> None:
        try:
            if usable and not connection.closed:
                self._idle.append(connection)
                return
            await connection.close()
            if not usable:  # the server has gone away, and the others with it
                idle, self._idle = self._idle, []
                for other in idle:
                    await other.close()
        finally:
            self._free.release()

    async def close(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    # -- statements ------------------------------------------------------------------------------

    async def rows(self, statement: str, *values: Any) -> Rows:
        """Run one statement that may be repeated; return its rows."""
        return (await self.all_rows((statement, values)))[0]

    async def all_rows(self, *statements: Statement) -> Sequence[Rows]:
        """Run statements that may be repeated, in one round trip; return the rows of each."""

        async def run(connection: Connection) -> list[Rows]:
            if len(statements) == 1:
                ((statement, values),) = statements
                cursor = await connection.execute(self.qualify(statement), values, binary=True)
                return [await cursor.fetchall() if cursor.description else []]
            async with pipelined(connection):
                cursors = [
                    await connection.execute(self.qualify(statement), values, binary=True)
                    for statement, values in statements
                ]
                return [await cursor.fetchall() for cursor in cursors]

        return await self.repeatable(run)

    async def repeatable(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run work that has the same effect twice as once; again after a broken connection."""
        deadline = time.monotonic() + self._config.timeout_seconds
        while True:
            connection = await self._take(deadline)
            try:
                result = await work(connection)
            except BaseException as error:
                again = await self._after(connection, error, deadline)
                if not again:
                    raise
            else:
                await self._give(connection, usable=True)
                return result

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> tuple[T, Transaction]:
        """Run work in a transaction; return its result and the transaction once it is committed.

        Args:
            work: Runs again after a lost race or a broken connection: it has no effect outside of
                its transaction.
        """
        deadline = time.monotonic() + self._config.timeout_seconds
        while True:
            connection = await self._take(deadline)
            tx = Transaction(connection, self.qualify)
            result: Any = None
            try:
                result = await work(tx)
                await tx.commit()
            except BaseException as error:
                again = await self._after(connection, error, deadline)
                if again and tx.is_committing and await self._is_committed(tx.id):
                    return result, tx
                if isinstance(error, errors.UndefinedTable) and tx.partitions:
                    for partition in sorted(tx.partitions):
                        await self.repeatable(
                            lambda c, name=partition: create_partition(c, self.qualify, name)
                        )
                elif not again:
                    raise
            else:
                await self._give(connection, usable=True)
                return result, tx

    async def _after(self, connection: Connection, error: BaseException, deadline: float) -> bool:
        """Give a connection back after an error; return whether to run the work again."""
        lost = connection.closed or is_unavailable(error)
        usable = not lost and isinstance(error, Exception)
        if usable:
            try:
                await connection.rollback()
            except psycopg.Error:
                usable, lost = False, True
        await self._give(connection, usable=usable)
        if not isinstance(error, psycopg.Error) or time.monotonic() >= deadline:
            return False
        if is_unavailable(error):
            await asyncio.sleep(_RETRY_SECONDS)  # the next connection may lead to the same server
        return lost or is_conflict(error)

    async def _is_committed(self, transaction_id: str) -> bool:
        """Return the outcome of a transaction whose COMMIT got no reply.

        Raises:
            StoreUnavailableError: It cannot be found out.
        """
        deadline = time.monotonic() + self._config.timeout_seconds
        status: Any = "in progress"
        while status == "in progress" and time.monotonic() < deadline:
            try:
                ((status,),) = await self.rows(
                    "SELECT pg_xact_status(%s::text::xid8)", transaction_id
                )
            except errors.InvalidParameterValue:
                return False  # a standby took over that never had this transaction
            if status == "in progress":
                # Its process has not noticed yet that the connection is gone. Nothing tells when.
                await asyncio.sleep(_RETRY_SECONDS)
        if status not in ("committed", "aborted"):
            raise StoreUnavailableError(
                f"PostgreSQL at {self.address} went away during a commit whose outcome is unknown"
            )
        return status == "committed"
