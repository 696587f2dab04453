"""Measures pages of many rollouts over the REST API, in the orders and filters of the dashboard.

``python3 dev.py bench rollout_pages``; ``AGL_BENCH_ROLLOUTS`` is the number of rollouts in the
SQLite file, 1,000,000 by default, which takes a minute to write.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_store_http import LightningStoreServer
from agl_store_sqlite import SqliteLightningStore

pytestmark = pytest.mark.benchmark

ROLLOUTS = int(os.environ.get("AGL_BENCH_ROLLOUTS", "1000000"))
PAGES: tuple[dict[str, Any], ...] = (
    {"sort_by": "start_time"},
    {"sort_by": "reward"},
    {"sort_by": "reward", "sort_order": "asc"},
    {"sort_by": "duration"},
    {"mode_in": ["train"], "sort_by": "start_time"},
    {"mode_in": ["val"], "sort_by": "reward"},
    {"mode_in": ["test"], "sort_by": "reward"},
    {"mode_in": ["train"], "status_in": ["succeeded"], "sort_by": "reward"},
    {"mode_in": ["val"], "status_in": ["failed"], "sort_by": "duration"},
    {"mode_in": ["test"], "status_in": ["running"], "sort_by": "start_time"},
)
TASK = json.dumps({"question": "Which rooms are free on Monday? " * 6}).encode()
COLUMNS = "ordinal, rollout_id, status, mode, start_time, end_time, reward, duration, input"


def rows(count: int, chance: random.Random) -> Iterator[tuple[Any, ...]]:
    for ordinal in range(1, count + 1):
        (status,) = chance.choices(["succeeded", "failed", "running"], [90, 8, 2])
        (mode,) = chance.choices(["train", "val", "test", None], [80, 15, 1, 4])
        start = 1.7e9 + ordinal / 100
        took = None if status == "running" else chance.expovariate(0.2)
        end = None if took is None else start + took
        reward = None if took is None else chance.gauss(0.5, 0.3)
        name = f"ro-{chance.getrandbits(48):012x}"
        yield ordinal, name, status, mode, start, end, reward, took, TASK


async def fill(path: Path, rollouts: int) -> None:
    """Write the rollouts past the store, which would take an hour."""
    store = SqliteLightningStore(path)
    await store.statistics()
    await store.close()
    with sqlite3.connect(path) as file:
        file.executemany(
            f"INSERT INTO rollouts ({COLUMNS}, config, metadata, attempts) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '{}', '{}', 1)",
            rows(rollouts, random.Random(1)),
        )
        file.execute(
            "INSERT INTO attempts (rollout, sequence_id, rollout_id, attempt_id, start_time, "
            "end_time, status, metadata) SELECT ordinal, 1, rollout_id, 'at', start_time, "
            "end_time, status, '{}' FROM rollouts"
        )
        file.execute("UPDATE counters SET value = ? WHERE name = 'rollouts'", (rollouts,))
        counts = "SELECT count(*), 'rollouts.' || status FROM rollouts GROUP BY status"
        for count in file.execute(counts).fetchall():
            file.execute("UPDATE counters SET value = ? WHERE name = ?", count)
    file.close()


def ask(url: str, query: dict[str, Any]) -> tuple[float, int]:
    """Return the milliseconds that a page takes, and the number of matches."""
    body = json.dumps({"limit": 100, "sort_order": "desc", **query}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        total = json.load(answer)["total"]
    return (time.perf_counter() - began) * 1000, total


async def test_first_pages_of_many_rollouts(tmp_path: Path):
    await fill(tmp_path / "store.db", ROLLOUTS)
    store = SqliteLightningStore(tmp_path / "store.db")
    server = LightningStoreServer(store, "127.0.0.1", 0, launch_mode="asyncio")
    await server.start()
    print(f"\n{ROLLOUTS:,} rollouts\n   first    best  matches")
    for query in PAGES:
        found = [
            await asyncio.to_thread(ask, f"{server.endpoint}/v1/agl/rollouts/search", query)
            for _ in range(3)
        ]
        print(
            f"{found[0][0]:5.0f} ms{min(found)[0]:5.0f} ms{found[0][1]:9,}  {json.dumps(query)}",
            flush=True,
        )
    await server.stop()
    await store.close()
