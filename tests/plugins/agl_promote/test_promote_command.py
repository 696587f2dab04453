"""``agl promote``: plan, run, show, roll back, on a store in a file."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agl_cli_kit import main
from agl_core.types import PromptTemplate
from agl_promote import Decision, LivePointer, Promotion
from agl_promote.traffic import trials_of

sqlite = pytest.importorskip("agl_store_sqlite")

PROGRAM = """
import agl_core as agl

@agl.rollout
def agent(task, prompt_template):
    easy = task["id"] % 3 == 0
    return float(easy or (prompt_template.template == "better" and task["id"] % 3 == 1))
"""
FILE = """
agent = "promoted.py:agent"
strategy = "shm"
store = { type = "sqlite", path = "runs.db" }
"""
PLAN = [
    "promote", "plan", "train.toml", "--name", "booking", "--candidate", "night/v1",
    "--tasks", "fresh.jsonl", "--range", "0", "1",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "promoted", raising=False)
    (tmp_path / "promoted.py").write_text(PROGRAM)
    (tmp_path / "train.toml").write_text(FILE)
    tasks = [json.dumps({"id": number}) for number in range(60)]
    (tmp_path / "fresh.jsonl").write_text("\n".join(tasks))

    async def fill() -> None:
        store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
        for name, text in (("night/v0", "seed"), ("night/v1", "better")):
            prompt = PromptTemplate(template=text, engine="f-string")
            await store.update_resources(name, {"prompt": prompt})
        labels = {"metadata": {"run": "night"}, "mode": "val"}
        await store.enqueue_rollout({"id": 999}, **labels)
        await store.update_rollout((await store.query_rollouts())[0].rollout_id, status="cancelled")
        await store.close()

    asyncio.run(fill())
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.usefixtures("folder")
def test_from_the_plan_to_the_roll_back(capsys):
    name = ["train.toml", "--name", "booking"]
    assert main([*PLAN, "--champion", "night/v0", "--json"]) == 0
    made = said(capsys)
    assert made["rollouts"] == 120
    assert [round(one["gain"], 2) for one in made["power"]] == [0.05, 0.1, 0.2]
    assert made["power"][2]["power"] > 0.8
    assert main(["promote", "show", *name]) == 0
    assert "undecided" in capsys.readouterr().out
    assert main(["promote", "run", *name, "--check", "--json"]) == 0
    shown = said(capsys)
    assert (shown["decision"], shown["live"]) == ("promote", "night/v1")
    assert 0 < shown["at_least"] < shown["gain"]
    assert shown["pairs"] in (15, 30, 45, 60)
    assert main(["promote", "run", *name]) == 0  # it is decided: nothing runs again
    assert "promote: the gain and every guardrail are shown" in capsys.readouterr().out
    assert main(["promote", "rollback", *name, "--why", "worse on Monday"]) == 0
    assert "live:booking is night/v0 again" in capsys.readouterr().out
    assert main(["promote", "show", *name, "--json"]) == 0
    history = said(capsys)["history"]
    assert [one["resources_id"] for one in history] == ["night/v0", "night/v1", "night/v0"]
    assert history[-1]["why"] == "rolled back: worse on Monday"


@pytest.mark.usefixtures("folder")
def test_what_is_live_is_what_a_later_candidate_has_to_beat(capsys):
    assert main([*PLAN, "--champion", "night/v0"]) == 0
    assert main(["promote", "run", "train.toml", "--name", "booking"]) == 0
    capsys.readouterr()
    again = [*PLAN, "--champion", "night/v0"]
    again[again.index("night/v1")] = "night/v0"
    assert main(again) == 2
    assert "live:booking is night/v1, which the candidate has to beat" in capsys.readouterr().err


def test_the_next_candidate_is_planned_against_what_the_last_promotion_made_live(folder, capsys):
    async def add() -> None:
        store = sqlite.SqliteLightningStore(folder / "runs.db")
        prompt = PromptTemplate(template="seed", engine="f-string")
        await store.update_resources("week/v3", {"prompt": prompt})
        await store.close()

    asyncio.run(add())
    name = ["train.toml", "--name", "booking"]
    again = ["week/v3" if word == "night/v1" else word for word in PLAN]
    assert main([*PLAN, "--champion", "night/v0"]) == 0
    assert main(again) == 2
    assert main(["promote", "run", *name]) == 0
    capsys.readouterr()
    assert main([*again, "--json"]) == 0
    made = said(capsys)
    assert (made["plan"]["champion"], made["plan"]["champion_version"]) == ("night/v1", 1)
    assert made["uses"] == {"booking": 60}
    assert main(["promote", "run", *name, "--json"]) == 0
    shown = said(capsys)
    assert (shown["decision"], shown["live"]) == ("keep", "night/v1")
    assert shown["uses"] == {shown["follows"]: 60}
    earlier = ["train.toml", "--name", shown["follows"]]
    assert main(["promote", "show", *earlier]) == 0
    out = capsys.readouterr().out
    assert "promote: the gain and every guardrail are shown" in out
    assert "live:booking   night/v1" in out
    assert main(["promote", "run", *earlier]) == 2
    assert f"the promotion {shown['follows']!r} is over" in capsys.readouterr().err


LIVE = [*PLAN[:7], "--range", "0", "1", "--champion", "night/v0", "--live", "--deadline", "600"]
NAME = ["train.toml", "--name", "booking"]


async def promoted(path: Path) -> None:
    """Leave a promotion as a process does that is killed as its watch is about to roll back."""
    store = sqlite.SqliteLightningStore(path)
    promotion = await Promotion.open(store, "booking")
    await promotion.acquire()
    shown = Decision("promote", 0.1, 0.2, 100, {}, "shown")
    await promotion.decide(shown, trials_of(promotion)[1])
    await promotion.renew(watch=shown._asdict(), watched=[[]] * 7)
    await promotion.release()
    await store.close()


def test_a_candidate_that_the_watch_rolls_back_fails_the_check(folder, capsys):
    assert main([*LIVE, "--watch", "20"]) == 0
    asyncio.run(promoted(folder / "runs.db"))
    capsys.readouterr()
    assert main(["promote", "show", *NAME]) == 0
    assert "7 episodes, the watch is on" in capsys.readouterr().out
    assert main(["promote", "serve", *NAME, "--check", "--json"]) == 1
    shown = said(capsys)
    assert (shown["decision"], shown["live"]) == ("promote", "night/v0")
    assert (shown["watch"], shown["rolled_back"]) == ("rolled back", True)
    assert main(["promote", "serve", *NAME]) == 0  # without --check, as after any decision
    assert "7 episodes, the watch is over: rolled back" in capsys.readouterr().out
    assert main(["promote", "rollback", *NAME]) == 2
    assert "nothing else was live as live:booking before night/v0" in capsys.readouterr().err


def test_a_roll_back_during_a_trial_says_that_it_ends_the_trial(folder, capsys):
    assert main(LIVE) == 0

    async def begin() -> None:
        store = sqlite.SqliteLightningStore(folder / "runs.db")
        promotion = await Promotion.open(store, "booking")
        live = (await LivePointer.read(store, "booking")).beginning_with("night/v0", 0.0)
        await live.try_out(store, trials_of(promotion)[0])
        await store.close()

    asyncio.run(begin())
    capsys.readouterr()
    assert main(["promote", "rollback", *NAME, "--why", "too slow"]) == 0
    assert capsys.readouterr().out == "the trial of night/v1 is over; live:booking is night/v0\n"
    assert main(["promote", "show", *NAME, "--json"]) == 0
    shown = said(capsys)
    assert (shown["trial"], shown["watch"]) == (None, None)
    assert shown["history"][-1]["resources_id"] == "night/v0"
    assert shown["history"][-1]["why"] == "trial of night/v1 ended: too slow"


def test_mistakes_are_one_line_and_say_what_to_do(folder, capsys):
    for extra, text in (
        ([], "nothing is live:booking yet; name the snapshot to beat"),
        (["--champion", "night/v9"], "the store has no resources 'night/v9'"),
        (["--champion", "night/v0", "--guard", "country"], "write input.KEY:MARGIN"),
        (["--champion", "night/v0", "--max-pairs", "4"], "take more tasks, repeats or episodes"),
        (["--champion", "night/v0", "--alpha", "0.07"], "alpha"),
        (["--champion", "night/v0", "--range", "0", "inf"], "reward_range"),
    ):
        assert main([*PLAN, *extra]) in (1, 2)
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
    assert main(["promote", "run", "train.toml", "--name", "nothing"]) == 2
    assert "there is no promotion 'nothing'" in capsys.readouterr().err
    (folder / "fresh.jsonl").write_text('{"id": 999}\n{"id": 1}\n')
    assert main([*PLAN, "--champion", "night/v0", "--anyway"]) == 2
    assert "1 of the 2 tasks were used by the search" in capsys.readouterr().err
