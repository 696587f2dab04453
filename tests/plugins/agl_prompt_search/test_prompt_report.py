"""Reports of a prompt search: files, log lines, and a table in a terminal."""

from __future__ import annotations

import csv
import io
import logging
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import agl_prompt_search as prompt_search
from agl_core.algorithm import (
    BatchOutcome,
    RewardRange,
    RewardScale,
    RolloutOutcome,
    show_progress,
)
from agl_core.errors import RunFailedError
from agl_core.statistics import estimate_mean
from agl_core.types import Rollout
from agl_prompt_search import Reporter, SearchState, require_use, write_files


class Candidate(prompt_search.Candidate):
    """A candidate of two prompts."""

    plan: str = ""
    answer: str = ""

    def texts(self) -> Mapping[str, str]:
        return {"plan": self.plan, "answer": self.answer}


class State(SearchState[Candidate]):
    @property
    def survivors(self) -> Sequence[str]:
        return [self.best]


def state() -> State:
    found = State(seed=1, history=[Candidate(version="v0", plan="a", rewards={0: 0.0, 1: 1.0})])
    found.add_curve_point()
    found.add(Candidate(version="v2", parent="v0", round=1, rejected="the edit is the same as v1"))
    better = Candidate(version="v1", parent="v0", round=1, answer="b", critique='- "c",\n- d')
    better.rewards = {0: 1.0, 1: 1.0}
    found.add(better)
    found.best, found.rounds = "v1", 1
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
        assert (history[0]["plan"], history[1]["answer"]) == ("a", "b")
        assert history[2]["score"] == ""
        assert history[2]["rejected"] == "the edit is the same as v1"
        curve = read(folder / "curve.csv")
        assert [(row["round"], row["best"], float(row["score"])) for row in curve] == [
            ("0", "v0", 0.5),
            ("1", "v1", 1.0),
        ]
        assert (curve[1]["rollouts"], curve[1]["calls"], curve[1]["cost"]) == ("12", "3", "0.25")

    def test_the_curve_is_drawn_if_matplotlib_is_installed(self, tmp_path: Path):
        pytest.importorskip("matplotlib")
        *_, picture = write_files(state(), tmp_path)
        assert picture.name == "curve.png"
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_a_state_survives_json(self):
        assert State.model_validate_json(state().model_dump_json()) == state()


class TestState:
    def test_a_failure_ranks_last_and_is_printed_as_the_lowest_possible_reward(self):
        found = State(seed=1, history=[Candidate(version="v0"), Candidate(version="v1")])
        crashes, costs = found.history
        for row, (one, other) in enumerate([(-1.0, -3.0), (None, -3.0)]):
            crashes.record(row, one)
            costs.record(row, other)
        found.use_scale(RewardScale())
        assert (crashes.mean(), costs.mean()) == (-3.0, -3.0)  # a failure ranks as -5
        assert costs.beats(crashes)
        shown = crashes.score()
        assert shown is not None and shown.mean == -2.0  # but no reward below -3 was seen
        found.use_scale(RewardScale(RewardRange(-10, 0)))
        shown = crashes.score()
        assert shown is not None and shown.mean == crashes.mean() == -5.5

    def test_candidates_are_compared_on_the_rows_of_both(self):
        one = Candidate(version="v1", rewards={0: 1.0, 1: 0.0, 2: 0.0})
        two = Candidate(version="v2", rewards={0: 1.0, 1: 1.0})
        assert two.beats(one)
        assert not one.beats(two)
        assert not one.beats(one)
        assert not one.beats(Candidate(version="v3"))
        assert one.missing(range(5)) == [3, 4]

    def test_an_unknown_version_is_a_key_error(self):
        with pytest.raises(KeyError, match="v9"):
            state().candidate("v9")


class Named(prompt_search.Candidate):
    """A candidate whose prompts have the names of figures."""

    def texts(self) -> Mapping[str, str]:
        return {"score": "Score {q}", "parent": "Ask", "plan": "Plan"}


def test_a_prompt_may_have_the_name_of_a_column(tmp_path: Path):
    found = SearchState[Named](seed=1, history=[Named(version="v0", rewards={0: 1.0})])
    write_files(found, tmp_path)
    (row,) = read(tmp_path / "history.csv")
    assert (row["score"], row["parent"]) == ("1.0", "")
    assert (row["prompt score"], row["prompt parent"], row["plan"]) == ("Score {q}", "Ask", "Plan")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("failed", ""),
        ("succeeded", "the agent gave no reward in any rollout"),
        ("cancelled", "no rollout of the agent ended in time"),
    ],
)
def test_a_resumed_search_knows_how_earlier_rollouts_ended(status: Any, says: str):
    rollout = Rollout(rollout_id="r", input=1, start_time=0.0, status=status)
    first = State(seed=1, history=[Candidate(version="v0", failed=[0])])
    first.look_at(BatchOutcome([RolloutOutcome(rollout, None, ())]))
    resumed = State.model_validate_json(first.model_dump_json())
    with pytest.raises(RunFailedError, match=says) if says else nullcontext():
        require_use("APO", resumed)


def test_what_the_store_dropped_is_no_missing_reward():
    rollout = Rollout(rollout_id="r", input=1, start_time=0.0, status="succeeded")
    found = state()
    found.look_at(BatchOutcome([RolloutOutcome(rollout, None, (), infrastructure="eviction")]))
    assert found.unrated == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    steps = []
    with show_progress("search", 3) as progress:
        reporter = Reporter(progress, lambda step, metrics: steps.append((step, metrics)), "s")
        reporter.round_ended(state())
        reporter.stopped("max_calls = 3 are made")
    shown = screen.getvalue()
    for text in ("round 1", "v1", "1.000", "kept", "the edit is the same as v1", "cost 0.2500"):
        assert text in shown
    assert "stopping: max_calls = 3 are made" in shown
    figures = {"s/rollouts": 12, "s/calls": 3, "s/tokens": 0, "s/cost": 0.25}
    figures |= estimate_mean([1.0, 1.0]).figures("val/reward")
    assert steps == [(1, figures)]


@pytest.mark.parametrize("gain", [0.0, 0.6])
def test_the_end_says_if_luck_explains_the_whole_gain(caplog: pytest.LogCaptureFixture, gain):
    chance = random.Random(14)
    found = State(seed=1, history=[])
    for number in range(12):
        worth = 0.3 + gain * (number == 7)
        rewards = {row: float(chance.random() < worth) for row in range(24)}
        found.add(Candidate(version=f"v{number}", rewards=rewards))
    seed = found.candidate("v0").mean() or 0.0
    best = max(found.history, key=lambda one: one.mean() or 0.0)
    found.best = best.version
    claimed = (best.mean() or 0.0) - seed
    assert claimed > 0.1
    with caplog.at_level(logging.INFO, "agl_prompt_search"), show_progress("search", 3) as progress:
        Reporter(progress, lambda step, metrics: None, "s").ended(found)
    whole = f", all of its gain of {claimed:.2f} over v0; only tasks that"
    assert (whole in caplog.text) is (gain == 0.0)
    assert "among 12 prompts on 24 tasks" in caplog.text


def test_without_a_terminal_lines_are_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "agl_prompt_search"), show_progress("search", 3) as progress:
        reporter = Reporter(progress, lambda step, metrics: None, "s")
        reporter.started(state())
        reporter.proposed(state().candidate("v2"))
        reporter.measured(state().candidate("v1"), [0])
        reporter.resumed(state())
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "start: best v1 1.000 [0.000, 1.000] (n=2), 12 rollouts, 3 calls, 0 tokens, cost 0.2500",
        "v2 is rejected: the edit is the same as v1",
        "v1 scores 1.000 [0.000, 1.000] (n=1)",
        "resumed after round 1: " + lines[0].removeprefix("start: "),
    ]
