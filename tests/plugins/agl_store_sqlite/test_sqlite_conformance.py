"""The SQLite store under the conformance suite."""

import sqlite3
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any, get_args

import pytest_asyncio

from agl_core.types import RolloutStatus
from agl_store_sqlite import SqliteLightningStore
from agl_testing import StoreSuite


def assert_counted(path: str) -> None:
    """Check that the counters hold what counting returns."""
    with closing(sqlite3.connect(path)) as connection:
        counters = dict(connection.execute("SELECT name, value FROM counters"))
        tables = {
            "rollouts": "SELECT count(*) FROM rollouts",
            "attempts": "SELECT count(*) FROM attempts",
            "spans": "SELECT count(*) FROM spans",
            "span_bytes": "SELECT coalesce(sum(length(payload)), 0) FROM spans",
        }
        for status in get_args(RolloutStatus):
            name = f"rollouts.{status}"
            tables[name] = f"SELECT count(*) FROM rollouts WHERE status = '{status}'"
        counted = {name: connection.execute(sql).fetchone()[0] for name, sql in tables.items()}
    assert {name: counters[name] for name in counted} == counted


class TestSqliteStore(StoreSuite):
    flags = frozenset(
        {"thread_safe", "durable", "processes", "events", "ends", "fails_commits", "scans"}
    )

    @pytest_asyncio.fixture
    async def store(self, tmp_path):
        # What `full` adds, surviving power loss, no test can see; it would cost minutes of syncs.
        store = SqliteLightningStore(
            tmp_path / "store.db", durability="normal", scan_debounce_seconds=0
        )
        yield store
        await store.close()
        assert_counted(store.path)

    async def reopen(self, store: Any):
        return SqliteLightningStore(store.path, durability="normal", scan_debounce_seconds=0)

    @asynccontextmanager
    async def failing_commits(self, store: Any):
        """Break a foreign key that is checked at the commit."""
        with closing(sqlite3.connect(store.path)) as other:
            other.executescript(
                "CREATE TABLE parents (id INTEGER PRIMARY KEY);"
                "CREATE TABLE broken (id REFERENCES parents DEFERRABLE INITIALLY DEFERRED);"
                "CREATE TRIGGER fail AFTER UPDATE ON rollouts "
                "BEGIN INSERT INTO broken VALUES (1); END"
            )
            store._sqlite.database.writer._connection.execute("PRAGMA foreign_keys = ON")
            yield
            other.executescript("DROP TRIGGER fail; DROP TABLE broken; DROP TABLE parents")

    def connection(self, store: Any):
        return partial(SqliteLightningStore, store.path, durability="normal")  # pyright: ignore[reportCallIssue]
