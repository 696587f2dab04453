"""APO on the room booking example, with its simulated model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "room_booking"


def run(*arguments: str | Path, cwd: Path) -> str:
    """Run Python without a real endpoint; return its standard output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_one_seed_gains_a_quarter_in_400_rollouts(tmp_path: Path):
    found = json.loads(run(EXAMPLE / "measure.py", "apo", "--seeds", "1", "--json", cwd=tmp_path))
    assert found == json.loads(
        run(EXAMPLE / "measure.py", "apo", "--seeds", "1", "--json", "--runners", "3", cwd=tmp_path)
    ), "a seed must repeat a run, whatever the order in which its rollouts end"
    (one,) = found["runs"]
    assert one["rollouts"] <= 400
    assert one["after"] - one["before"] >= 0.25
    assert one["val_after"] >= one["val_before"]
    assert found["gain"]["mean"] == pytest.approx(one["after"] - one["before"])


def test_the_train_file_trains_and_writes_the_curve(tmp_path: Path):
    options = (
        "algorithm.beam_rounds=2",
        f"algorithm.output_dir={tmp_path}",
        "store={type='memory'}",
        "proxy.port=0",
    )
    sets = [part for option in options for part in ("--set", option)]
    out = run("-m", "agl_cli_kit", "train", EXAMPLE / "apo.toml", *sets, "--json", cwd=tmp_path)
    metrics = json.loads(out)["metrics"]
    assert metrics["steps"] == 3
    assert metrics["val/reward"] > 0
    assert metrics["apo/calls"] == 8
    assert (tmp_path / "curve.csv").read_text().count("\n") == 4
    assert (tmp_path / "history.csv").exists()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_five_seeds_hold_what_the_readme_says(tmp_path: Path):
    found = json.loads(run(EXAMPLE / "measure.py", "apo", "--json", cwd=tmp_path))
    runs = found["runs"]
    assert len(runs) == 5
    assert found["gain"]["lowest"] >= 0.25
    assert all(one["after"] - one["before"] >= 0.25 for one in runs)
    assert all(one["rollouts"] <= 400 for one in runs)
    assert all(one["val_after"] >= one["val_before"] for one in runs)
