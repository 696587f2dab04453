"""Files and log lines of a run."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

from agl_algo_apo import APOState


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_writes_files_at_its_end(make_apo, fit, tmp_path: Path):
    apo = make_apo(output_dir=tmp_path)
    fit(apo)
    history = read(tmp_path / "history.csv")
    assert [row["prompt"] for row in history] == [one.prompt for one in apo.history]
    assert len(history) == 9
    assert len(read(tmp_path / "curve.csv")) == 3
    assert (tmp_path / "curve.png").exists()
    saved = apo.state.model_dump_json()  # the scale is not saved: it is learned from the rewards
    assert APOState.model_validate_json(saved).model_dump() == apo.state.model_dump()


def test_rounds_and_rejections_are_logged(make_apo, fit, caplog):
    with caplog.at_level(logging.INFO, "agl_prompt_search"):
        apo = make_apo()
        fit(apo)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert lines[0].startswith("v0 scores 0.000 [0.000, 0.326] (n=8)")
    assert lines[1].startswith("start: best v0 0.000")
    (last,) = [line for line in lines if line.startswith("round 2: ")]
    assert f"best {apo.state.best} 0.500" in last
    assert f"{apo.state.spent.rollouts} rollouts, 16 calls" in last
