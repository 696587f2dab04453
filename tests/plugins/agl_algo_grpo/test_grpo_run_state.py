"""What a run keeps: which checkpoints it removes, and with which options it may be resumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agl_algo_grpo import GRPOConfig
from agl_algo_grpo.metrics import COLUMNS, Metrics
from agl_algo_grpo.run_state import RunState, options_of, remove_all, steps_of
from agl_core.algorithm import Run
from agl_core.errors import ConfigError
from agl_store_memory import InMemoryLightningStore

TASKS = [{"number": i} for i in range(5)]


def new_run(state: Any = None) -> Run:
    run = Run(InMemoryLightningStore())
    run.state = state
    return run


def state_of(run: Run, *names: str, tasks: Any = TASKS, **options: Any) -> RunState:
    config = GRPOConfig(model="m", **options)
    return RunState(run, names or ("main_llm",), not names, options_of(config, tasks))


async def save(state: RunState, folder: Path, step: int, keep: int = 2) -> None:
    made = folder / f"step-{step}"
    made.mkdir(parents=True, exist_ok=True)
    (made / "trainer.pt").write_text("-")
    await state.add({"main_llm": made}, {}, keep)


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_checkpoints_of_an_earlier_run_stay_and_do_not_push_out_the_new_ones(tmp_path: Path):
    for name in ("step-90", "step-100", "step-50-good"):
        (tmp_path / name).mkdir()
    state = state_of(new_run())
    assert await state.begin() == {}
    for step in (10, 20, 30):
        await save(state, tmp_path, step)
    others = {"step-90", "step-100", "step-50-good"}
    assert left_in(tmp_path) == {"step-20", "step-30", *others}


async def test_a_resumed_run_goes_on_to_remove_what_it_wrote(tmp_path: Path):
    run = new_run()
    state = state_of(run)
    await state.begin()
    for step in (10, 20):
        await save(state, tmp_path, step)
    state = state_of(new_run(run.state))
    assert await state.begin() == {"main_llm": tmp_path / "step-20"}
    await save(state, tmp_path, 30)
    await save(state, tmp_path, 30)  # killed before the next step, and resumed
    assert left_in(tmp_path) == {"step-20", "step-30"}


async def test_the_state_of_an_older_version_is_read(tmp_path: Path):
    old = {"checkpoint": str(tmp_path / "step-40")}
    (tmp_path / "step-40").mkdir()
    assert steps_of(old) == 40
    run = new_run(old)
    state = state_of(run, group_size=4)
    assert await state.begin() == {"main_llm": tmp_path / "step-40"}
    await save(state, tmp_path, 50, keep=1)
    assert left_in(tmp_path) == {"step-50"}
    assert steps_of(run.state) == 50


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group_size": 4}, "algorithm.group_size: the run began with group_size=8, not 4"),
        ({"tasks_per_step": 9}, "algorithm.tasks_per_step: "),
        ({"seed": 1}, "algorithm.seed: "),
        ({"tasks": TASKS[:-1]}, "train_dataset: the run began with other tasks"),
        ({"tasks": TASKS[::-1]}, "train_dataset: "),
    ],
)
async def test_a_run_is_not_resumed_with_other_rollouts(options: dict[str, Any], said: str):
    run = new_run()
    await state_of(run).begin()  # killed before its first checkpoint
    assert steps_of(run.state) == 0
    await state_of(new_run(run.state), retries=3, learning_rate=1e-5).begin()
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        await state_of(new_run(run.state), **options).begin()


async def test_a_run_is_not_resumed_with_policies_of_other_names():
    run = new_run({"a": "x/step-1", "b": "y/step-1"})
    with pytest.raises(ConfigError, match="checkpoints of a, b, not of a, c"):
        await state_of(run, "a", "c").begin()
    assert await state_of(run, "a", "b").begin() == {"a": Path("x/step-1"), "b": Path("y/step-1")}


def test_the_digest_of_a_large_dataset_reads_a_part_of_it():
    class Large(list[int]):
        read = 0

        def __getitem__(self, index: Any) -> Any:
            self.read += 1
            return index

    tasks = Large(range(100_000))
    options_of(GRPOConfig(model="m"), tasks)
    assert 0 < tasks.read <= 1000


def test_files_beside_the_folders_to_remove_do_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / ".DS_Store").write_text("")
    (tmp_path / "step-1").mkdir()
    (tmp_path / "busy").mkdir()
    rmtree = remove_all.__globals__["shutil"].rmtree

    def refuse(folder: Path) -> None:
        if folder.name == "busy":
            raise OSError("Device or resource busy: .nfs01")
        rmtree(folder)

    monkeypatch.setattr("agl_algo_grpo.run_state.shutil.rmtree", refuse)
    remove_all([*tmp_path.iterdir(), tmp_path / "gone"])
    assert left_in(tmp_path) == {".DS_Store", "busy"}
    assert "busy is left: Device or resource busy" in caplog.text


def test_metrics_of_another_version_are_read(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text("step,reward,unknown\n0,0.5,7\n1,0.6,8\n")
    found = Metrics(tmp_path, 1)
    found.add({"step": 1, "rollouts": 1, "rows": 1, "seconds": 1.0, "reward": 0.7})
    assert found.column("reward") == [(0, 0.5), (1, 0.7)]
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
