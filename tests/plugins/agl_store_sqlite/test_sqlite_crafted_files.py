"""Files that somebody else made to trouble the one who opens them."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_core.errors import StoreDataError
from agl_store_sqlite import SqliteLightningStore

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@pytest.fixture
async def made(tmp_path: Path) -> Path:
    path = tmp_path / "made.db"
    store = SqliteLightningStore(path)
    await store.enqueue_rollout(1)
    await store.close()
    return path


@pytest.mark.parametrize(
    "change",
    [
        f"ALTER TABLE rollouts RENAME TO kept; CREATE VIEW rollouts AS {ENDLESS};",
        "CREATE TRIGGER slow AFTER UPDATE ON counters BEGIN DELETE FROM rollouts; END;",
        "CREATE TABLE more (a INTEGER, b AS (a + 1));",
        "CREATE TABLE more (a INTEGER CHECK (a > 1));",
    ],
    ids=["view", "trigger", "generated", "check"],
)
def test_a_file_with_programs_is_refused(made: Path, change: str, capsys) -> None:
    connection = sqlite3.connect(made)
    connection.executescript(change)
    connection.close()
    started = time.monotonic()
    with pytest.raises(StoreDataError, match="do not trust"):
        SqliteLightningStore(made)
    assert main(["store", "export", str(made.parent / "out.jsonl"), "--path", str(made)]) == 1
    assert "do not trust" in capsys.readouterr().err
    assert time.monotonic() - started < 10


def test_a_pipe_is_not_a_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    with pytest.raises(StoreDataError, match="not a file"):
        SqliteLightningStore(tmp_path / "pipe.db")
