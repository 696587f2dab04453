"""``agl export`` of a store whose rollouts differ in every selectable property."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_cli_kit import main
from agl_core.errors import StoreUnavailableError
from agl_core.store import LightningStore
from agl_export import (
    ExportReport,
    Selection,
    Split,
    export_dataset,
    graph_of_atif,
    read_rows,
)
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore

from .recorded import call, reward, said, user

sqlite = pytest.importorskip("agl_store_sqlite")


async def add(
    store: LightningStore,
    question: Any,
    text: str | None,
    value: float | None,
    *,
    status: Any = "succeeded",
    ids: bool = True,
    mode: Any = "train",
    run: str = "night",
) -> str:
    """Add a finished rollout with one call to a store."""
    started = await store.start_rollout(question, mode, metadata={"run": run})
    place = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    tokens: Any = (
        {"prompt_ids": [1, 2], "response_ids": [len(text or ""), 9], "logprobs": [-0.5, -1.0]}
        if ids
        else {}
    )
    spans = [] if text is None else [call([user(str(question))], said(text), **tokens)]
    if value is not None:
        spans.append(reward(value))
    if spans:
        await store.add_many_spans([span.model_copy(update=place) for span in spans])
    await store.update_attempt(*place.values(), status="succeeded")
    if status != "succeeded":
        await store.update_rollout(started.rollout_id, status=status)
    return started.rollout_id


async def fill(store: LightningStore) -> None:
    for question in range(10):
        await add(store, question, "right", 1.0)
        await add(store, question, "wrong!", 0.0)
    await add(store, 0, "late", 0.5, status="cancelled")
    await add(store, 0, "other", 0.75, mode="val")
    await add(store, 0, "day", 0.75, run="day")
    await add(store, 0, None, None)
    await add(store, 0, "no reward", None)
    await add(store, 0, "no ids", 0.25, ids=False)
    await store.enqueue_rollout(0, metadata={"run": "night"})


async def closing(path: Path, work: Any) -> Any:
    store = sqlite.SqliteLightningStore(path, durability="normal")
    try:
        return await work(store)
    finally:
        await store.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a filled agl.db."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(closing(tmp_path / "agl.db", fill))
    return tmp_path


def rows(path: str) -> list[dict[str, Any]]:
    return list(read_rows(Path(path)))


def test_sft(folder, capsys):
    assert main(["export", "sft", "best.jsonl", "--best", "1", "--run", "night"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "27 rollouts, 10 used: 10 train rows of 10 tasks",
        "left out: 12 rollouts (not among the best of its task)",
        "left out: 2 rollouts (of another status)",
        "left out: 1 rollout (of another run)",
        "left out: 1 rollout (no spans)",
        "left out: 1 rollout (no reward)",
        "best.jsonl: 10 rows",
    ]
    found = rows("best.jsonl")
    assert [row["messages"] for row in found] == [[user(f"{n}"), said("right")] for n in range(10)]
    assert {row["reward"] for row in found} == {1.0}


def test_atif(folder, capsys):
    assert main(["export", "atif", "x.jsonl", "--run", "night", "--bare", "--status", "any"]) == 0
    assert "25 rollouts" not in capsys.readouterr().out
    first, *_ = found = rows("x.jsonl")
    assert len(found) == 24
    assert first["extra"]["agl"] == {}
    assert [step["source"] for step in first["steps"]] == ["user", "agent"]
    assert graph_of_atif([first]).sampled_tokens == 2
    assert main(["export", "atif", "x.parquet"]) == 2
    assert "ATIF is JSON; the name must end in .jsonl" in capsys.readouterr().err


class Screen(io.StringIO):
    """A terminal as standard error."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_an_export_is(folder, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm")
    assert main(["export", "sft", "best.jsonl"]) == 0
    assert re.search(r"rollouts .*25/25", screen.getvalue())


def test_every_rollout_is_counted_with_its_reason(folder, capsys):
    assert main(["export", "rl", "x.jsonl", "--run", "night", "--mode", "train", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rollouts"] == 27
    assert said["used"] == said["rows"]["train"] == 20
    assert said["tasks"] == 10
    assert said["left_out"] == {
        "of another status": 1,
        "of another mode": 2,  # one has no mode
        "of another run": 1,
        "no spans": 1,
        "no reward": 1,
        "no token ids were captured": 1,
    }
    assert said["files"] == {"train": "x.jsonl"}
    assert Counter(row["task"] for row in rows("x.jsonl")).most_common(1)[0][1] == 2


def test_statuses_modes_and_any(folder, capsys):
    for arguments, count in (
        (["--status", "cancelled"], 1),
        (["--status", "cancelled", "--status", "succeeded"], 25),
        (["--status", "any"], 25),
        (["--mode", "val"], 1),
        (["--run", "day"], 1),
        (["--resources", "rs-none"], 0),
    ):
        code = main(["export", "sft", "x.jsonl", "--keep-duplicates", "--json", *arguments])
        said = json.loads(capsys.readouterr().out)
        assert (code, said["used"]) == (0 if count else 1, count), arguments
        assert said["used"] + sum(said["left_out"].values()) == said["rollouts"] == 27


def test_dpo(folder, capsys):
    assert main(["export", "dpo", "pairs.jsonl", "--run", "night", "--mode", "train"]) == 0
    assert "pairs.jsonl: 10 rows" in capsys.readouterr().out
    assert [(row["chosen"], row["rejected"]) for row in rows("pairs.jsonl")] == [
        ([said("right")], [said("wrong!")])
    ] * 10
    assert main(["export", "dpo", "pairs.jsonl", "--form", "tokens", "--bare"]) == 0
    assert rows("pairs.jsonl")[1] == {
        "prompt_ids": [1, 2],
        "chosen_ids": [5, 9],
        "rejected_ids": [6, 9],
    }


def test_tokens_for_sft_are_what_the_model_sampled(folder):
    assert main(["export", "sft", "x.jsonl", "--form", "tokens", "--best", "1", "--bare"]) == 0
    assert rows("x.jsonl") == [{"input_ids": [1, 2, 5, 9], "labels": [-100, -100, 5, 9]}] * 10


def test_parquet_is_the_same(folder):
    pytest.importorskip("pyarrow")
    for kind in ("sft", "dpo", "rl"):
        for name in ("x.jsonl", "x.parquet"):
            assert main(["export", kind, name]) == 0
        assert rows("x.parquet") == rows("x.jsonl")


def test_a_split_is_by_task_and_stays(folder, capsys):
    arguments = ["export", "rl", "x.jsonl", "--valid", "0.4", "--seed", "1"]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    sides = {name: {row["task"] for row in rows(path)} for name, path in said["files"].items()}
    assert not sides["train"] & sides["valid"]
    assert len(sides["train"] | sides["valid"]) == 10
    assert 1 <= len(sides["valid"]) <= 9

    before = rows("x.valid.jsonl")
    asyncio.run(closing(folder / "agl.db", lambda store: add(store, "new", "text", 1.0)))
    assert main(arguments) == 0
    assert [row for row in rows("x.valid.jsonl") if row["task"] in sides["valid"]] == before
    assert main([*arguments[:-1], "2"]) == 0
    assert {row["task"] for row in rows("x.valid.jsonl")} != sides["valid"]


def test_a_side_without_rows_keeps_no_old_file(folder):
    assert main(["export", "rl", "x.jsonl", "--valid", "1"]) == 0
    assert not Path("x.jsonl").exists()
    assert len(rows("x.valid.jsonl")) == 22
    assert main(["export", "rl", "x.jsonl", "--valid", "0.0000001"]) == 0
    assert not Path("x.valid.jsonl").exists()


def test_an_export_of_all_tasks_leaves_no_validation_file_of_a_split(folder, capsys):
    assert main(["export", "rl", "x.jsonl", "--valid", "1"]) == 0
    before = Path("x.valid.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["export", "rl", "x.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "error: x.valid.jsonl may have tasks that go to x.jsonl, too: remove it, split" in said
    assert said.count("\n") == 1
    assert Path("x.valid.jsonl").read_bytes() == before
    assert not Path("x.jsonl").exists()


def test_shares_are_met_on_average():
    sides = Counter(Split(0.25, seed=3).side(f"task {n}") for n in range(4000))
    assert 900 < sides["valid"] < 1100


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["sft", "x.csv"], "must end in .jsonl or .parquet", 2),
        (["sft", "none/x.jsonl"], "the folder none does not exist", 2),
        (["sft", "x.jsonl", "--path", "gone.db"], "there is no store gone.db", 2),
        (["sft", "x.jsonl", "--agent", "("], "'(' is not a regular expression", 2),
        (["sft", "x.jsonl", "--best", "0"], "0 is not in the range", 2),
        (["sft", "x.jsonl", "--valid", "2"], "2.0 is not in the range", 2),
        (["dpo", "x.jsonl", "--max-pairs", "2"], "--max-pairs needs --pairs all", 2),
        (["sft", "x.jsonl", "--min-reward", "2"], "nothing to export; x.jsonl was not written", 1),
    ],
)
def test_user_errors_are_one_line_and_leave_no_file(folder, capsys, arguments, message, code):
    assert main(["export", *arguments]) == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert [path.name for path in folder.glob("*x*")] == []


@pytest.fixture
def server() -> Iterator[Any]:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def test_a_server_gives_the_same(folder, server, capsys):
    asyncio.run(fill(server))
    assert main(["export", "sft", "x.jsonl", "--url", server.endpoint, "--best", "1"]) == 0
    assert len(rows("x.jsonl")) == 10


async def test_a_store_that_fails_is_an_error_and_leaves_no_file(tmp_path):
    class Leaving(InMemoryLightningStore):
        async def query_spans(self, *args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("gone")

    store = Leaving()
    await fill(store)
    with pytest.raises(StoreUnavailableError, match="gone"):
        await export_dataset(store, lambda _samples, _report: [], tmp_path / "x.jsonl")
    assert list(tmp_path.iterdir()) == []


async def test_a_custom_builder(tmp_path):
    def build(samples: Any, report: ExportReport) -> list[dict[str, Any]]:
        report.used += len(samples)
        return [{"task": samples[0].task, "rewards": [one.reward for one in samples]}]

    store = InMemoryLightningStore()
    await fill(store)
    selection = Selection(run="night", modes=["train"])
    report = await export_dataset(store, build, tmp_path / "x.jsonl", selection=selection)
    assert report.rows == {"train": 10}
    found = list(read_rows(tmp_path / "x.jsonl"))
    assert [row["rewards"] for row in found[1:]] == [[1.0, 0.0]] * 9
    assert found[0]["rewards"] == [1.0, 0.0, None, 0.25]
