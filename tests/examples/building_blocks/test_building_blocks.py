"""Each building block runs alone, is short, and ends with its table."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "building_blocks"
BLOCKS = sorted(EXAMPLE.glob("*_alone.py"))


def table_of(block: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Run a block as a program, and return the rows of its table."""
    runpy.run_path(str(EXAMPLE / f"{block}_alone.py"), run_name="__main__")
    return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]


def test_every_block_is_short_and_is_run_by_the_command():
    main = runpy.run_path(str(EXAMPLE / "main.py"))
    assert sorted(f"{block}_alone.py" for block in main["BLOCKS"]) == [b.name for b in BLOCKS]
    assert [b.name for b in BLOCKS if len(b.read_text().splitlines()) >= 60] == []


def test_the_store_alone(capsys: pytest.CaptureFixture[str]):
    rows = table_of("store", capsys)
    assert [row[:2] for row in rows] == [
        ["2+2", "succeeded"],
        ["3*3", "failed"],
        ["7-5", "queuing"],
    ]
    assert len({row[2] for row in rows}) == 1


@pytest.mark.slow
def test_the_server_alone(capsys: pytest.CaptureFixture[str]):
    rows = table_of("server", capsys)
    assert [row[2] for row in rows] == ["succeeded"] * 4
    (worker,) = {row[3] for row in rows}
    assert worker.startswith("process-")


def test_the_tracer_alone(capsys: pytest.CaptureFixture[str]):
    rows = table_of("tracer", capsys)
    assert [row[:2] for row in rows[:2]] == [
        ["agentlightning.operation", "answer"],
        ["agentlightning.operation", "search"],
    ]
    assert [row[-1] for row in rows].count("0.5") == 1


def test_the_runner_alone(capsys: pytest.CaptureFixture[str]):
    rows = [" ".join(row) for row in table_of("runner", capsys)]
    assert rows == [
        "Calculate. 2+2 succeeded 1.0 2",
        "Calculate. 3*3 succeeded 0.0 2",
        "Calculate. 1/0 succeeded 0.0 2",
        "Calculate carefully. 2+2 succeeded 1.0 2",
        "Calculate carefully. 3*3 succeeded 1.0 2",
        "Calculate carefully. 1/0 failed division by zero",
    ]


def test_the_metrics_alone(capsys: pytest.CaptureFixture[str]):
    rows = table_of("metrics", capsys)
    assert [row[:3] for row in rows[:2]] == [
        ["shop.calls", "ok", "2"],
        ["shop.calls", "refused", "1"],
    ]
    assert rows[2][:2] == ["shop.seconds", "3"]


def test_the_proxy_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MODEL_URL", raising=False)
    rows = {row[0]: row[1:] for row in table_of("proxy", capsys)}
    assert len(rows["response_token_ids"]) == len(["The", "answer", "is", "42."])
    assert rows["gen_ai.response.finish_reasons"] == ["['stop']"]


def test_a_block_that_fails_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    main = runpy.run_path(str(EXAMPLE / "main.py"))
    for block in main["BLOCKS"]:
        (tmp_path / f"{block}_alone.py").write_text(f"exit({int(block == 'tracer')})")
    monkeypatch.setitem(main["main"].__globals__, "__file__", str(tmp_path / "main.py"))
    assert main["main"]() == 1
    rows = capsys.readouterr().out.splitlines()[-6:]
    assert [row.split()[0] for row in rows if row.endswith("exit 1")] == ["tracer"]
