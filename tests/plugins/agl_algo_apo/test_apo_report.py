"""What a user sees: files, lines, and a table in a terminal."""

from __future__ import annotations

import csv
import io
import logging
import sys
from pathlib import Path

import pytest

from agl_algo_apo import APOState, Candidate
from agl_algo_apo.report import Reporter, write_files
from agl_core.algorithm import show_progress


def state() -> APOState:
    found = APOState(
        seed=1, history=[Candidate(version="v0", prompt="a", rewards={0: 0.0, 1: 1.0})]
    )
    found.add_curve_point()
    found.add(Candidate(version="v2", parent="v0", round=1, rejected="the edit is the same as v1"))
    better = Candidate(version="v1", parent="v0", round=1, prompt="b", critique='- "c",\n- d')
    better.rewards = {0: 1.0, 1: 1.0}
    found.add(better)
    found.beam, found.best, found.rounds = ["v1", "v0"], "v1", 1
    found.count_batch("v1-round-1", 12)
    found.spent.calls, found.spent.cost = 3, 0.25
    found.add_curve_point()
    return found


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class TestFiles:
    def test_history_and_curve_can_be_read_back(self, tmp_path: Path):
        folder = tmp_path / "deep" / "er"
        write_files(state(), folder)
        history = read(folder / "history.csv")
        assert [row["version"] for row in history] == ["v0", "v1", "v2"]
        assert history[1]["critique"] == '- "c",\n- d'
        assert (float(history[1]["score"]), int(history[1]["n"])) == (1.0, 2)
        assert history[2]["score"] == ""
        assert history[2]["rejected"] == "the edit is the same as v1"
        curve = read(folder / "curve.csv")
        assert [(row["round"], row["best"], float(row["score"])) for row in curve] == [
            ("0", "v0", 0.5),
            ("1", "v1", 1.0),
        ]
        assert (curve[1]["rollouts"], curve[1]["calls"], curve[1]["cost"]) == ("12", "3", "0.25")

    def test_the_curve_is_drawn_where_matplotlib_is(self, tmp_path: Path):
        pytest.importorskip("matplotlib")
        *_, picture = write_files(state(), tmp_path)
        assert picture.name == "curve.png"
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_a_run_writes_them_at_its_end(self, make_apo, fit, tmp_path: Path):
        apo = make_apo(output_dir=tmp_path)
        fit(apo)
        assert len(read(tmp_path / "history.csv")) == 9
        assert len(read(tmp_path / "curve.csv")) == 3

    def test_a_state_survives_json(self):
        assert APOState.model_validate_json(state().model_dump_json()) == state()


class TestLines:
    def test_rounds_and_rejections_are_logged(self, make_apo, fit, caplog):
        with caplog.at_level(logging.INFO, "agl_algo_apo"):
            apo = make_apo()
            fit(apo)
        lines = [record.getMessage() for record in caplog.records]
        assert lines[0].startswith("v0 scores 0.000 [0.000, 0.324] (n=8)")
        assert lines[1].startswith("start: best v0 0.000")
        (last,) = [line for line in lines if line.startswith("round 2: ")]
        assert f"best {apo.state.best} 0.500" in last
        assert f"{apo.state.spent.rollouts} rollouts, 16 calls" in last


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    steps = []
    with show_progress("APO", 3) as progress:
        reporter = Reporter(progress, lambda step, metrics: steps.append((step, metrics)))
        reporter.round_ended(state())
        reporter.stopped("max_calls = 3 are made")
    shown = screen.getvalue()
    for text in ("round 1", "v1", "1.000", "kept", "the edit is the same as v1", "cost 0.2500"):
        assert text in shown
    assert "stopping: max_calls = 3 are made" in shown
    assert steps == [
        (
            1,
            {
                "apo/rollouts": 12,
                "apo/calls": 3,
                "apo/tokens": 0,
                "apo/cost": 0.25,
                "val/reward": 1.0,
            },
        )
    ]
