"""A run on a SQLite file survives SIGKILL at random points: no acknowledged write is lost."""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path

import pytest

from agl_testing.crashes import StoreSpec, survive_kills

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork"),
]

KILLS = int(os.environ.get("AGL_TEST_CRASHES", "220"))


def test_a_run_survives_every_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = cycle(["full", "normal"])

    def spec(folder: Path) -> StoreSpec:
        options = {
            "path": str(folder / "runs.db"),
            "durability": next(levels),
            "scan_debounce_seconds": 1.0,
        }
        return StoreSpec("agl_store_sqlite:SqliteLightningStore", options)

    report = survive_kills(tmp_path, spec, KILLS)
    with capsys.disabled():
        print(f"\n{report.text}")
    assert len(report.kills) == 4 or KILLS < 50
