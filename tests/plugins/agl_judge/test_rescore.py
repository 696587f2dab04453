"""Another scorer over stored rollouts: agreement, speed, and nothing runs or changes."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agl_algorithm_kit import keep_scores, kept_scores, read_batch
from agl_cli_kit import main
from agl_core.errors import InvalidArgumentError
from agl_core.statistics import estimate_gain, estimate_mean
from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest, Span
from agl_judge import agreement, rescore

sqlite = pytest.importorskip("agl_store_sqlite")
REWARD = {"agentlightning.reward.0.name": "primary"}


async def fill(store: LightningStore, count: int) -> None:
    """A run of rollouts of tasks 0, 0, 1, 1, …; one in ten fails."""
    requests = [
        EnqueueRolloutRequest(
            input={"id": number // 2},
            mode="test",
            metadata={"run": "night", "batch": "eval", "index": number},
        )
        for number in range(count)
    ]
    await store.enqueue_many_rollouts(requests)
    left = count
    while left:
        claimed = await store.dequeue_many_rollouts(limit=100, worker_id="w")
        spans = [
            Span.from_attributes(
                name="answer",
                attributes={**REWARD, "agentlightning.reward.0.value": number % 3 / 2},
                rollout_id=one.rollout_id,
                attempt_id=one.attempt.attempt_id,
                sequence_id=1,
            )
            for one in claimed
            for number in [(one.metadata or {})["index"]]
        ]
        await store.add_many_spans(spans)
        for one in claimed:
            number = (one.metadata or {})["index"]
            status = "failed" if number % 10 == 9 else "succeeded"
            await store.update_attempt(one.rollout_id, one.attempt.attempt_id, status=status)
        left -= len(claimed)


def even(task, spans):
    value = spans[0].attributes["agentlightning.reward.0.value"]
    return None if task["id"] == 2 else float(value >= 0.5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("rescored_agent", "scorers"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    async def make() -> None:
        store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
        await fill(store, 40)
        await store.close()

    asyncio.run(make())
    (tmp_path / "rescored_agent.py").write_text(
        "import agl_core as agl\n\n@agl.rollout\ndef agent(task, llm):\n    raise SystemExit\n"
    )
    (tmp_path / "scorers.py").write_text(
        "def good(task, spans):\n"
        "    return float(spans[0].attributes['agentlightning.reward.0.value'] >= 0.5)\n\n"
        "def silent(task, spans):\n    return None\n\n"
        "async def infinite(task, spans):\n    return float('inf')\n"
    )
    (tmp_path / "train.toml").write_text(
        'agent = "rescored_agent.py:agent"\nstore = { type = "sqlite", path = "runs.db" }\n'
    )
    return tmp_path


async def test_scores_are_by_task_and_failures_count_as_the_lowest(tmp_path: Path):
    store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
    await fill(store, 20)
    result = await rescore(store, "night", even)
    by_hand: dict[int, list[tuple[float, float]]] = {}
    for number in range(20):
        failed, reward = number % 10 == 9, number % 3 / 2
        new = 0.0 if failed or number // 2 == 2 else float(reward >= 0.5)
        by_hand.setdefault(number // 2, []).append((0.0 if failed else reward, new))
    own = [sum(a for a, _ in pairs) / 2 for pairs in by_hand.values()]
    new = [sum(b for _, b in pairs) / 2 for pairs in by_hand.values()]
    assert result.score == pytest.approx(estimate_mean(new))
    assert result.change == pytest.approx(estimate_gain(own, new))
    assert sum(score is None for score in result.scores) == 4  # two failed, two without a score
    assert result.agreement is not None
    assert result.agreement.n == 16
    assert result.agreement.accuracy.mean == 1.0
    with pytest.raises(InvalidArgumentError, match="no finished rollouts of a run 'day'"):
        await rescore(store, "day", even)
    await store.close()


def test_the_command_prints_and_writes_a_file(folder, capsys):
    options = ["--scorer", "scorers.py:good", "--output", "new.jsonl", "--dry-run"]
    assert main(["rescore", "train.toml", "night", *options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["rollouts"], said["without_score"]) == (40, 4)
    assert said["agreement"]["kappa"] == 1.0
    rows = [json.loads(line) for line in (folder / "new.jsonl").read_text().splitlines()]
    assert rows[1] == {**rows[1], "input": {"id": 0}, "reward": 0.5, "score": 1.0}
    assert said["kept_as"] is None
    assert main(["rescore", "train.toml", "night", *options[:2]]) == 0
    assert "kappa 1.00" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_the_store_keeps_scores_and_scorers_are_compared(capsys):
    scorers = [
        "def strict(task, spans):",
        "    return float(spans[0].attributes['agentlightning.reward.0.value'] == 1.0)",
    ]
    with Path("scorers.py").open("a") as file:
        file.write("\n\n" + "\n".join(scorers) + "\n")
    night = ["rescore", "train.toml", "night", "--json", "--scorer"]
    assert main([*night, "scorers.py:good"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["agreement_with"] == {}
    assert main([*night, "scorers.py:strict", "--name", "all-right"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    # Rewards are 0, 0.5, 1, 0, …; every tenth rollout failed, and is scored by neither.
    by_task: dict[int, list[float]] = {}
    for i in range(40):
        if i % 10 != 9:
            by_task.setdefault(i // 2, []).append(float((i % 3 >= 1) == (i % 3 == 2)))
    # The unit is the task, as everywhere: 36 rollouts of 20 tasks are 20 values.
    same = estimate_mean([sum(one) / len(one) for one in by_task.values()])
    assert found["kept_as"] == "all-right"
    assert found["agreement_with"]["good"]["n"] == 36
    assert found["agreement_with"]["good"]["accuracy"] == pytest.approx(same._asdict())
    assert main([*night[:3], "--scorer", "scorers.py:strict", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "with good" in out
    assert "with all-right" in out
    assert "kept as" not in out

    async def look() -> tuple[dict, object]:
        store = sqlite.SqliteLightningStore("runs.db")
        kept, latest = await kept_scores(store, "night"), await store.get_latest_resources()
        rewards = [one.reward for one in await read_batch(store, "night")]
        await store.close()
        assert rewards[:3] == [0.0, 0.5, 1.0]  # the rollouts keep theirs
        return kept, latest

    kept, latest = asyncio.run(look())
    assert set(kept) == {"good", "all-right"}
    assert list(kept["good"].values())[:4] == [0.0, 1.0, 1.0, 0.0]
    assert latest is None  # agents do not meet them


@pytest.mark.usefixtures("folder")
def test_kept_scores_are_compared_task_by_task(capsys):
    async def day() -> None:
        store = sqlite.SqliteLightningStore("runs.db")
        night = await read_batch(store, "night")
        scores = {one.rollout.rollout_id: 0.25 for one in night}
        await keep_scores(store, "night", "flat", scores)
        assert (await kept_scores(store, "nigh")) == {}
        with pytest.raises(InvalidArgumentError, match="letters, digits"):
            await keep_scores(store, "night", "a/b", {})
        await store.close()

    asyncio.run(day())
    assert main(["compare", "train.toml", "night", "night", "--score", "flat", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    # Of each five tasks one has a failure, which counts as 0.
    assert found["before"]["mean"] == pytest.approx((16 * 0.25 + 4 * 0.125) / 20)
    assert found["tied"] == 20
    assert main(["compare", "train.toml", "night", "night", "--score", "good"]) == 2
    assert "keeps no scores 'good' of night; it has those of flat" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_mistakes_are_one_line(capsys):
    for run, scorer, text in (
        ("day", "scorers.py:good", "no finished rollouts of a run 'day'"),
        ("night", "scorers.py:nothing", "nothing"),
        ("night", "scorers.py:silent", "scored none of the 40 rollouts"),
        ("night", "scorers.py:infinite", "36 times, first on"),
    ):
        assert main(["rescore", "train.toml", run, "--scorer", scorer]) == 2
        assert text in capsys.readouterr().err


async def test_a_failing_call_loses_no_other_score(tmp_path: Path, caplog):
    store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
    await fill(store, 20)

    async def flaky(task, spans):
        if task["id"] == 2:
            raise TimeoutError("the judge is busy")
        return math.nan if task["id"] == 3 else 1.0

    result = await rescore(store, "night", flaky, keep_as="flaky")
    assert sum(score is not None for score in result.scores) == 14  # two more rollouts failed
    assert sorted(result.problems.values()) == [
        *["InvalidArgumentError: the score is nan, not a finite number"] * 2,
        *["TimeoutError: the judge is busy"] * 2,
    ]
    assert "the scorer failed on 4 rollouts; 2 times, first on " in caplog.text
    kept = (await kept_scores(store, "night"))["flaky"]
    assert list(kept.values()) == list(result.scores)
    assert result.agreement is not None
    assert (result.agreement.n, result.agreement.missing) == (14, 4)
    await store.close()


async def test_an_interrupted_call_keeps_its_scores_for_the_next(tmp_path: Path, caplog):
    store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
    await fill(store, 20)
    calls: list[Any] = []

    async def slow(task, spans):
        calls.append(task)
        if len(calls) > 5:
            await asyncio.Event().wait()
        return 1.0

    run = asyncio.ensure_future(rescore(store, "night", slow, keep_as="slow", concurrent=1))
    while len(calls) < 6:
        await asyncio.sleep(0.001)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert "the scores of 5 rollouts are kept for --resume" in caplog.text
    assert await kept_scores(store, "night") == {}, "scores of a part are not those of the run"

    async def rest(task, spans):
        return 0.0

    result = await rescore(store, "night", rest, keep_as="slow", resume=True)
    given = [score for score in result.scores if score is not None]
    assert sorted(given, reverse=True) == [1.0] * 5 + [0.0] * 13
    again = await rescore(store, "night", rest, keep_as="slow", resume=True)
    assert 1.0 not in again.scores, "a call that ended leaves nothing to resume"
    await store.close()


async def test_a_name_that_cannot_be_kept_is_refused_before_scoring(tmp_path: Path):
    store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
    await fill(store, 2)
    calls = []
    with pytest.raises(InvalidArgumentError, match="a scorer's name is made of letters"):
        await rescore(store, "night", lambda *of: calls.append(of), keep_as="my judge")
    assert calls == []
    await store.close()


def test_a_failure_counts_the_lowest_declared_reward(folder, capsys):
    with (folder / "train.toml").open("a") as file:
        file.write("[trainer]\nreward_range = [-1, 1]\n")
    command = ["rescore", "train.toml", "night", "--json", "--dry-run", "--scorer"]
    assert main([*command, "scorers.py:good"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = [-1.0 if i % 10 == 9 else float(i % 3 >= 1) for i in range(40)]
    assert found["score"]["mean"] == pytest.approx(sum(expected) / 40)


def test_the_order_agrees_with_brute_force():
    chance = random.Random(3)
    for size in (2, 5, 40):
        scores = [chance.randrange(5) / 4 for _ in range(size)]
        labels = [chance.randrange(4) / 3 for _ in range(size)]
        wins = [
            0.5 if a == b else float((a > b) == (label_a > label_b))
            for (a, label_a), (b, label_b) in itertools.combinations(
                list(zip(scores, labels, strict=True)), 2
            )
            if label_a != label_b
        ]
        expected = sum(wins) / len(wins) if wins else None
        assert agreement(scores, labels).ordered == pytest.approx(expected)


@pytest.mark.slow
async def test_ten_thousand_rollouts_take_seconds(tmp_path: Path):
    store = sqlite.SqliteLightningStore(tmp_path / "runs.db")
    await fill(store, 10_000)
    began = time.monotonic()
    result = await rescore(store, "night", even, keep_as="even")
    took = time.monotonic() - began
    assert len(result.scores) == 10_000
    print(f"\n10,000 rollouts in {took:.1f} s")
    assert took <= 20
    await store.close()
