"""Runs on PostgreSQL whose processes are killed at random points lose nothing.

Besides the store's server, the algorithm and the runners, the processes of the database are killed:
a backend, after which PostgreSQL ends all others and recovers, or all of them at once.
"""

from __future__ import annotations

import os
import random
import signal
import uuid
from pathlib import Path

import psycopg
import pytest

from agl_testing.crashes import StoreSpec, survive_kills

from .postgres_server import Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork"),
]

KILLS = int(os.environ.get("AGL_TEST_CRASHES", "30"))


def test_a_run_survives_every_kill(
    own_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spec(_: Path) -> StoreSpec:
        options = {
            "uri": own_server.uri,
            "schema_name": f"crash_{uuid.uuid4().hex[:12]}",
            "scan_debounce_seconds": 1.0,
            "timeout_seconds": 20.0,
        }
        return StoreSpec("agl_store_postgres:PostgresLightningStore", options)

    def kill_backend(rng: random.Random) -> bool:
        try:
            backends = own_server.backends()
        except psycopg.OperationalError:
            return False  # it still recovers from the kill before
        if not backends:
            return False
        os.kill(rng.choice(backends), signal.SIGKILL)
        return True

    def kill_database(rng: random.Random) -> bool:
        own_server.kill()
        own_server.start()
        return True

    more = {"backend": kill_backend, "database": kill_database}
    report = survive_kills(tmp_path, spec, KILLS, more=more)
    with capsys.disabled():
        print(f"\n{report.text}")
    assert len(report.kills) == 6 or KILLS < 50
