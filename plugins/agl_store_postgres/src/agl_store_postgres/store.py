"""The PostgreSQL store: the store engine on the PostgreSQL backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agl_core.plugins import configured_by
from agl_store_kit import EngineStore, Record
from agl_store_postgres.backend import PostgresBackend
from agl_store_postgres.config import PostgresConfig

__all__ = ["PostgresLightningStore"]


class PostgresLightningStore(EngineStore):
    """Keeps everything in PostgreSQL, for any number of processes on any number of machines.

    Each call is one transaction. A call that wrote returns once its commit is on the server's disk.
    Thread-safe; usable from several event loops. It may be pickled to another process and used
    after a fork; it connects again there. It connects at the first call.

    Args:
        config: A :class:`PostgresConfig`, or its fields as arguments: ``uri`` and, by name,
            ``listen_uri``, ``schema_name``, ``max_connections``, ``timeout_seconds`` and
            ``scan_debounce_seconds``.

    Raises:
        ConfigError: An option is outside its domain.
        StoreDataError: The connection string is wrong. Calls raise it for what the server refuses.
        StoreUnavailableError: Raised by calls while the server cannot be reached.
    """

    @configured_by(PostgresConfig)
    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self._postgres = PostgresBackend(config)
        super().__init__(self._postgres, scan_debounce_seconds=config.scan_debounce_seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._config,))

    @property
    def endpoint(self) -> str:
        """The server's address and the database, without credentials."""
        return self._postgres.address

    async def server_settings(self) -> dict[str, str]:
        """Return the server's version and the settings that durability depends on, by name."""
        return await self._postgres.server_settings()

    async def restore(self, records: Iterable[Record]) -> int:
        """Store records that are not there yet, unchanged, in one transaction.

        Args:
            records: See :class:`agl_store_kit.Restorable`.

        Returns:
            How many records were stored.

        Raises:
            InvalidArgumentError: A record is malformed, or belongs to one that does not exist.
        """
        return await self._postgres.restore(list(records))

    async def vacuum(
        self, *, ended_before: float | None = None, keep_last: int | None = None
    ) -> int:
        """Drop finished rollouts with their attempts and spans.

        A partition of spans whose rollouts are all dropped is dropped as a table, which takes
        milliseconds and gives its disk space back. Other spans are deleted; PostgreSQL's autovacuum
        makes their space available again.

        Args:
            ended_before: Keep rollouts that ended at this time or later, in epoch seconds.
            keep_last: Keep this many of the rollouts begun last.

        Returns:
            How many rollouts were dropped; without any argument none are.
        """
        if ended_before is None and keep_last is None:
            return 0
        return await self._postgres.drop_rollouts(ended_before=ended_before, keep_last=keep_last)
