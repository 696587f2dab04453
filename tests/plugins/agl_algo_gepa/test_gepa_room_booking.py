"""GEPA on the room booking example with its simulated model, and killed runs of GEPA and APO."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agl_algorithm_kit import stored_runs
from agl_store_sqlite import SqliteLightningStore

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "room_booking"


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """Start Python without a real endpoint."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str | Path, cwd: Path) -> str:
    """Run Python to its end; return its standard output."""
    with start(*arguments, cwd=cwd) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "SIMULATED" in err
    return out


@pytest.mark.timeout(300)
def test_one_seed_gains_a_quarter_in_400_rollouts(tmp_path: Path):
    measure = (EXAMPLE / "measure.py", "gepa", "--seeds", "1", "--json")
    found = json.loads(run(*measure, cwd=tmp_path))
    assert found == json.loads(run(*measure, "--runners", "3", cwd=tmp_path)), (
        "a seed must repeat a run, whatever the order in which its rollouts end"
    )
    (one,) = found["runs"]
    assert one["rollouts"] <= 400
    assert one["after"] - one["before"] >= 0.25
    assert one["val_after"] >= one["val_before"]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_five_seeds_hold_what_the_readme_says(tmp_path: Path):
    found = json.loads(run(EXAMPLE / "measure.py", "gepa", "--json", cwd=tmp_path))
    runs = found["runs"]
    assert len(runs) == 5
    assert found["gain"]["lowest"] >= 0.25
    assert all(one["after"] - one["before"] >= 0.25 for one in runs)
    assert all(one["rollouts"] <= 400 for one in runs)
    assert all(one["val_after"] >= one["val_before"] for one in runs)


# -- kills -----------------------------------------------------------------------------------------

OPTIONS = {
    "gepa": ("algorithm.max_rollouts=160",),
    "apo": ("algorithm.max_rollouts=220", "algorithm.val_batch_size=12"),
}
KILLS = 3


def train(algorithm: str, folder: Path, port: int) -> list[str | Path]:
    settings = [
        *OPTIONS[algorithm],
        f"store={{type='sqlite', path='{folder / 'agl.db'}'}}",
        f"proxy.port={port}",
        f"algorithm.output_dir='{folder}'",
    ]
    sets = [part for one in settings for part in ("--set", one)]
    return ["-m", "agl_cli_kit", "train", EXAMPLE / f"{algorithm}.toml", *sets, "--json"]


async def finished(file: Path) -> int:
    """Return the number of finished rollouts."""
    store = SqliteLightningStore(file)
    try:
        return (await store.statistics()).get("total_rollouts", 0)
    finally:
        await store.close()


async def read(file: Path) -> tuple[dict[str, Any], Counter[Any]]:
    """Return the final state of a run, and how often each of its rollouts was enqueued."""
    store = SqliteLightningStore(file)
    try:
        ((_, checkpoint),) = (await stored_runs(store)).items()
        assert checkpoint.finished
        made = Counter(
            (one.metadata["batch"], one.metadata["index"])
            for one in await store.query_rollouts()
            if one.metadata
        )
    finally:
        await store.close()
    return checkpoint.state, made


def without_calls(state: dict[str, Any]) -> dict[str, Any]:
    """Compare two runs; a call in flight at a kill may be repeated, all else must be equal."""
    spent = {"calls", "input_tokens", "output_tokens", "tokens", "cost"}
    curve = [{k: v for k, v in point.items() if k not in spent} for point in state["curve"]]
    return {**state, "curve": curve, "spent": state["spent"]["rollouts"]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", ["gepa", "apo"])
async def test_killed_at_random_points_it_ends_as_an_undisturbed_run(
    tmp_path: Path, unused_tcp_port: int, algorithm: str
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    run(*train(algorithm, whole, unused_tcp_port), cwd=whole)
    expected, made = await read(whole / "agl.db")
    total = sum(made.values())
    assert set(made.values()) == {1}

    dice = random.Random(algorithm)
    resume: tuple[str, ...] = ()
    for at in sorted(dice.sample(range(1, total - 5), KILLS)):
        with start(*train(algorithm, broken, unused_tcp_port), *resume, cwd=broken) as process:
            while process.poll() is None:
                if (broken / "agl.db").exists() and await finished(broken / "agl.db") >= at:
                    process.send_signal(signal.SIGKILL)
                    break
                await asyncio.sleep(0.02)
            process.communicate()
        assert process.returncode == -signal.SIGKILL, "it came to its end too early"
        resume = ("--resume",)
    run(*train(algorithm, broken, unused_tcp_port), *resume, cwd=broken)
    found, again = await read(broken / "agl.db")
    assert again == made, "no rollout is spent twice"
    assert without_calls(found) == without_calls(expected)
    assert (broken / "history.csv").read_text() == (whole / "history.csv").read_text()
