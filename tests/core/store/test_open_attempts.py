"""What an agent writes after the end of its attempt, in the stores of one process."""

from __future__ import annotations

from pathlib import Path

from agl_store_memory import InMemoryLightningStore
from agl_store_sqlite import SqliteLightningStore
from agl_testing.store.ended import check_spans_after_the_end


async def test_in_memory():
    await check_spans_after_the_end(InMemoryLightningStore())


async def test_in_sqlite(tmp_path: Path):
    store = SqliteLightningStore(str(tmp_path / "runs.db"))
    await check_spans_after_the_end(store)
    await store.close()
