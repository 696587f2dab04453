"""What the writer knows of the file from one transaction to the next."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from agl_core.types import Attempt, Worker
from agl_store_sqlite.tables import StoredRollout

__all__ = ["Known"]

_MOST: Final = 10_000


class Known:
    """Rows that the writer need not read again, because nobody else has written since.

    A span asks for its rollout, its attempt and the place of the span before it, and all of a
    rollout's spans ask for the same. Only what is small is kept: no payloads, no metadata.

    Not thread-safe, like the connection whose transactions use it.
    """

    def __init__(self) -> None:
        self._version: int | None = None
        self.standings: dict[str, StoredRollout] = {}
        """Rollouts without their payloads, by id."""
        self.attempts: dict[tuple[str, str], Attempt] = {}
        """Attempts without metadata, by rollout's id and their own."""
        self.workers: dict[str, Worker] = {}
        """Workers with short stats, by id."""
        self.last_spans: dict[int, int] = {}
        """Ordinals of the newest spans, by their rollouts'."""

        self.sequence_ids: dict[str, int] = {}
        """The highest sequence ids drawn or stored, by their rollouts' ids."""

    def check(self, connection: sqlite3.Connection) -> None:
        """Forget everything if another connection has changed the file; inside a transaction."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self.clear()
            self._version = version
        for kept in self._all():
            if len(kept) > _MOST:
                kept.clear()

    def clear(self) -> None:
        """Forget everything; after a transaction that was rolled back, too."""
        for kept in self._all():
            kept.clear()

    def _all(self) -> tuple[dict[Any, Any], ...]:
        return (
            self.standings,
            self.attempts,
            self.workers,
            self.last_spans,
            self.sequence_ids,
        )
