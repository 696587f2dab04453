"""Runs on MongoDB that are killed at random points and resumed lose nothing."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from agl_testing.crashes import StoreSpec, survive_kills

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork"),
]

KILLS = int(os.environ.get("AGL_TEST_CRASHES", "60"))


def test_a_run_survives_every_kill(
    mongo_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spec(_: Path) -> StoreSpec:
        options = {
            "uri": mongo_uri,
            "partition_id": f"crash-{uuid.uuid4().hex[:12]}",
            "scan_debounce_seconds": 1.0,
        }
        return StoreSpec("agl_store_mongo:MongoLightningStore", options)

    report = survive_kills(tmp_path, spec, KILLS)
    with capsys.disabled():
        print(f"\n{report.text}")
    assert len(report.kills) == 4 or KILLS < 50
