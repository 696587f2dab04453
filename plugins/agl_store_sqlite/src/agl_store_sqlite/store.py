"""The SQLite store: the store engine on the SQLite backend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from agl_core.plugins import configured_by
from agl_store_kit import EngineStore, Record
from agl_store_sqlite import maintenance
from agl_store_sqlite.backend import SqliteBackend
from agl_store_sqlite.config import SqliteConfig

__all__ = ["SqliteLightningStore"]

logger = logging.getLogger(__name__)

_DROPPED_AT_ONCE: Final = 200
"""Rollouts dropped per transaction, so that other writes are not held up for long."""


class SqliteLightningStore(EngineStore):
    """Keeps everything in one file, in WAL mode, for any number of processes of one machine.

    A call that wrote returns once its transaction is on the disk; writes that arrive together share
    one commit. Thread-safe; usable from several event loops; survives SIGKILL, and with
    ``durability="full"`` power loss. It may be pickled to another process and used after a fork; it
    opens the file again there.

    Args:
        config: A :class:`SqliteConfig`, or its fields as arguments: ``path`` and, by name,
            ``durability``, ``busy_seconds`` and ``scan_debounce_seconds``.

    Raises:
        ConfigError: An option is outside its domain.
        StoreDataError: The file cannot be used; the message says why.
        StoreUnavailableError: Another process has locked the file.
    """

    @configured_by(SqliteConfig)
    def __init__(self, config: SqliteConfig) -> None:
        self._config = config
        self._sqlite = SqliteBackend(config)
        super().__init__(self._sqlite, scan_debounce_seconds=config.scan_debounce_seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        # The absolute path, because the other process may run in another folder.
        return (type(self), (self._config.model_copy(update={"path": self.path}),))

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._sqlite.path

    async def restore(self, records: Iterable[Record]) -> int:
        """Store records that are not there yet, unchanged, in one transaction.

        Args:
            records: See :class:`agl_store_kit.Restorable`.

        Returns:
            How many records were stored.

        Raises:
            InvalidArgumentError: A record is malformed, or belongs to one that does not exist.
        """
        batch = list(records)
        return await self._sqlite.database.writer.write(lambda tx: maintenance.restore(tx, batch))

    async def vacuum(
        self, *, ended_before: float | None = None, keep_last: int | None = None
    ) -> int:
        """Drop finished rollouts with their attempts and spans, and shrink the file.

        The file shrinks only if no other store has it open: its writes would fail meanwhile. In a
        file that does not shrink, new records take the space of those that were dropped. Writes of
        this store wait while the file shrinks. That needs free space of twice the size of what is
        left, half of it in the system's folder of temporary files.

        Args:
            ended_before: Keep rollouts that ended at this time or later, in epoch seconds.
            keep_last: Keep this many of the rollouts begun last.

        Returns:
            How many rollouts were dropped; without any argument none are.
        """
        database = self._sqlite.database
        dropped = 0
        while ended_before is not None or keep_last is not None:
            some = await database.writer.write(
                partial(
                    maintenance.drop_rollouts,
                    ended_before=ended_before,
                    keep_last=keep_last,
                    limit=_DROPPED_AT_ONCE,
                )
            )
            dropped += some
            if some < _DROPPED_AT_ONCE:
                break
        if not await asyncio.to_thread(database.compact):
            logger.warning(
                "%s keeps its size, since another store has it open; new records take the space "
                "of those that were dropped. To shrink it, vacuum it again while nothing else "
                "has it open",
                self.path,
            )
        return dropped
