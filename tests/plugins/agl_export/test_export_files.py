"""Writing rows to files and reading them back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agl_core.errors import ConfigError, InvalidArgumentError, MissingDependencyError
from agl_export import read_rows, writing_rows

from .recorded import TOOLS, called, result, said, user

ABOUT = {"reward": 0.5, "task": "t", "rollout_id": "ro", "attempt_id": "at"}
CERTIFICATE = {
    "agent": "*",
    "ids_present": True,
    "logprobs_present": False,
    "models": ["m"],
    "altered_sampling": [],
    "model_versions": [],
    "break_cause": None,
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"messages": [user("ü\n"), said("4")], **ABOUT},
        {
            "messages": [user("a"), called({"a": 1}), result("1"), said("1")],
            "tools": TOOLS,
            **ABOUT,
            "reward": None,
        },
    ],
    "tokens": [{"input_ids": [1, 2], "labels": [-100, 2], **ABOUT, **CERTIFICATE}],
    "pairs": [
        {
            "prompt": [user("a")],
            "chosen": [said("b")],
            "rejected": [called({"a": [None, {"b": 1}]})],
            "tools": TOOLS,
            "reward_chosen": 1.0,
            "reward_rejected": -0.25,
            "task": "t",
            "rollout_chosen": "x",
            "rollout_rejected": "y",
        }
    ],
    "token pairs": [{"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3], "task": "t"}],
    "trajectories": [
        {
            "input_ids": [1, 2],
            "mask": [0, 1],
            "logprobs": [0.0, -0.125],
            "prompt_length": 1,
            "responses": [[1, 2]],
            "call_rewards": [None],
            **ABOUT,
            **CERTIFICATE,
        }
    ],
    "triplets": [
        {
            "prompt_ids": [1],
            "response_ids": [2],
            "logprobs": None,
            "call_reward": 0.5,
            **ABOUT,
            "agent": "*",
            "response_id": "r",
        }
    ],
}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with writing_rows(path) as put:
        for row in rows:
            put(row)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("kind", ROWS)
def test_rows_come_back(tmp_path, suffix, kind):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"rows{suffix}"
    write(path, ROWS[kind])
    assert [without_none(row) for row in read_rows(path)] == [without_none(r) for r in ROWS[kind]]


def without_none(row: dict[str, Any]) -> dict[str, Any]:
    """Drop null fields: null content and absent content are equal."""
    found = dict(row)
    for name in {"messages", "prompt", "chosen", "rejected"} & row.keys():
        found[name] = [{k: v for k, v in one.items() if v is not None} for one in row[name]]
    return found


def test_parquet_has_one_type_per_column_whatever_tools_and_arguments_are(tmp_path):
    pytest.importorskip("pyarrow")
    decoded = called({"a": 1})
    decoded["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    other = called({"b": "x"})
    other["tool_calls"][0]["function"]["arguments"] = {"b": "x"}
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    write(
        tmp_path / "x.parquet",
        [{"messages": [parts, decoded], "tools": [{"any": 1}]}, {"messages": [user("a"), other]}],
    )
    one, two = read_rows(tmp_path / "x.parquet")
    assert one["tools"] == [{"any": 1}]
    assert json.loads(one["messages"][0]["content"]) == parts["content"]
    calls = [row["messages"][1]["tool_calls"][0]["function"] for row in (one, two)]
    assert [json.loads(call["arguments"]) for call in calls] == [{"a": 1}, {"b": "x"}]
    assert "tools" not in two


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_half_a_surrogate_pair_loses_no_row(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"x{suffix}"
    write(path, [{"messages": [said("a")]}, {"messages": [said("b \ud83d")]}])
    assert [row["messages"][0]["content"] for row in read_rows(path)] == ["a", "b ?"]


def test_many_rows(tmp_path):
    rows = [{"input_ids": [number], "labels": [number]} for number in range(2345)]
    write(tmp_path / "x.jsonl", rows)
    assert list(read_rows(tmp_path / "x.jsonl")) == rows


def test_a_file_is_replaced_only_after_success(tmp_path):
    path = tmp_path / "x.jsonl"
    write(path, [{"task": "old"}])
    with pytest.raises(ZeroDivisionError):
        write(path, ({"task": 1500 / (1500 - number)} for number in range(1501)))
    assert list(read_rows(path)) == [{"task": "old"}]
    write(path, [])
    assert list(read_rows(path)) == [{"task": "old"}]
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("x.csv", "must end in .jsonl or .parquet"), ("none/x.jsonl", "none does not exist")],
)
def test_invalid_file_names_are_refused(tmp_path, name, message):
    with pytest.raises(ConfigError, match=message), writing_rows(tmp_path / name):
        pass


def test_parquet_without_pyarrow_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        pytest.raises(MissingDependencyError, match="pip install 'pyarrow'"),
        writing_rows(tmp_path / "x.parquet"),
    ):
        pass


@pytest.mark.parametrize(
    ("line", "message"),
    [("[", "line 2 is not JSON"), ("[1]", "line 2 is not a JSON object")],
)
def test_a_line_that_is_not_a_row_is_named(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_text(f"{{}}\n{line}\n")
    with pytest.raises(InvalidArgumentError, match=message):
        list(read_rows(tmp_path / "x.jsonl"))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_link_in_the_folder_is_not_followed(tmp_path: Path, suffix: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    path = tmp_path / f"rows{suffix}"
    path.symlink_to(theirs)
    path.with_name(path.name + ".part").symlink_to(theirs)
    with writing_rows(path) as write:
        write({"rollout_id": "ro-1"})
    assert theirs.read_text() == "kept"
    assert not path.is_symlink()
    assert path.stat().st_size
