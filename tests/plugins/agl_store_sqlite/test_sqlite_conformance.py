"""The SQLite store under the conformance suite."""

import sqlite3
from contextlib import closing
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
    flags = frozenset({"thread_safe", "durable", "processes", "events", "scans"})

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

    def connection(self, store: Any):
        return partial(SqliteLightningStore, store.path, durability="normal")  # pyright: ignore[reportCallIssue]
