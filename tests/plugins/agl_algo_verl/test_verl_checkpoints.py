"""Checks that a run resumes from its own checkpoints only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agl_algo_verl import VERL
from agl_algo_verl.checkpoints import (
    RunCheckpoints,
    cancel_leftovers,
    keep_metrics_file,
    latest_step,
)
from agl_algorithm_kit import StoredRun
from agl_core.algorithm import Run
from agl_core.errors import ConfigError, StoreUnavailableError
from agl_core.types import EnqueueRolloutRequest
from agl_store_memory import InMemoryLightningStore


def checkpoint(folder: Path, step: int) -> None:
    (folder / f"global_step_{step}").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


async def opened(store: InMemoryLightningStore, name: str, folder: Path, **more: object) -> int:
    run = await (StoredRun if name else Run).open(store, name)
    settings = {"model": "tiny", "resumes": True, **more}
    return await RunCheckpoints(run, folder, **settings).open()  # pyright: ignore[reportArgumentType]


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


class TestIdentity:
    async def test_a_run_goes_on_from_its_own_checkpoint(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        run = await StoredRun.open(store, "rooms")
        checkpoints = RunCheckpoints(run, tmp_path, "tiny", resumes=True)
        assert await checkpoints.open() == 0
        checkpoint(tmp_path, 4)
        await checkpoints.saved(4, str(tmp_path / "global_step_4"))
        again = await StoredRun.open(store, "rooms")
        assert again.state["step"] == 4
        assert again.metrics == {"checkpoint_step": 4.0}
        assert await opened(store, "rooms", tmp_path) == 1
        assert await opened(store, "rooms", tmp_path) == 2

    async def test_another_runs_checkpoint_is_not_taken_up(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        await opened(store, "rooms", tmp_path)
        checkpoint(tmp_path, 4)
        with pytest.raises(ConfigError, match=r"default_local_dir: .*run 'rooms', not of 'b'"):
            await opened(store, "b", tmp_path)
        with pytest.raises(ConfigError, match="run 'rooms', not of ''"):
            await opened(store, "", tmp_path)
        assert await opened(store, "b", tmp_path, resumes=False) == 0

    async def test_another_models_checkpoint_is_not_taken_up(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        await opened(store, "", tmp_path)
        checkpoint(tmp_path, 4)
        with pytest.raises(ConfigError, match="checkpoints of tiny, not of large"):
            await opened(store, "", tmp_path, model="large")

    async def test_a_new_run_does_not_begin_in_the_middle(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        checkpoint(tmp_path, 4)
        with pytest.raises(ConfigError, match="'rooms' is new to the store"):
            await opened(store, "rooms", tmp_path)

    async def test_a_lost_checkpoint_does_not_mean_to_start_over(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        run = await StoredRun.open(store, "rooms")
        checkpoints = RunCheckpoints(run, tmp_path, "tiny", resumes=True)
        await checkpoints.open()
        await checkpoints.saved(4, "there")
        with pytest.raises(ConfigError, match="saved at step 4 in there, which is missing"):
            await opened(store, "rooms", tmp_path)

    async def test_what_does_not_resume_cannot_resume_from_anothers_weights_later(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        await opened(store, "a", tmp_path)
        checkpoint(tmp_path, 4)
        assert await opened(store, "b", tmp_path, resumes=False) == 0
        assert latest_step(tmp_path) == 0
        assert (tmp_path / "latest_checkpointed_iteration.before.txt").read_text() == "4"
        assert await opened(store, "b", tmp_path) == 1  # after an end before its first checkpoint
        assert (tmp_path / "global_step_4").exists()

    async def test_a_run_that_begins_anew_does_not_miss_its_old_checkpoint(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        checkpoints = RunCheckpoints(
            await StoredRun.open(store, "rooms"), tmp_path, "tiny", resumes=True
        )
        await checkpoints.open()
        checkpoint(tmp_path, 4)
        await checkpoints.saved(4, "there")
        assert await opened(store, "rooms", tmp_path, resumes=False) == 1
        assert await opened(store, "rooms", tmp_path) == 2

    async def test_a_run_without_a_name_says_that_it_resumes(
        self, store: InMemoryLightningStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        await opened(store, "", tmp_path)
        assert not caplog.records
        checkpoint(tmp_path, 4)
        await opened(store, "", tmp_path)
        assert "resuming from step 4" in caplog.text
        assert "neither run has a name" in caplog.text

    async def test_an_empty_file_of_the_last_step_is_named(
        self, store: InMemoryLightningStore, tmp_path: Path
    ):
        (tmp_path / "latest_checkpointed_iteration.txt").touch()
        with pytest.raises(ConfigError, match=r"latest_checkpointed_iteration\.txt must hold"):
            await opened(store, "", tmp_path)

    @pytest.mark.parametrize(
        ("resumes", "step", "text"),
        [
            (True, 4, "the checkpoint of step 4"),
            (True, 0, "the beginning, because there is no checkpoint"),
            (False, 0, "where it began, because resume_mode is not auto"),
        ],
    )
    async def test_where_a_restart_begins(
        self, store: InMemoryLightningStore, tmp_path: Path, resumes: bool, step: int, text: str
    ):
        if step:
            checkpoint(tmp_path, step)
        run = await Run.open(store, "")
        checkpoints = RunCheckpoints(run, tmp_path, "tiny", resumes=resumes)
        await checkpoints.open()
        assert checkpoints.next_start == text


class TestMore:
    @pytest.mark.parametrize(
        ("asked", "more"),
        [
            ({}, False),
            ({"total_training_steps": 4}, False),
            ({"total_training_steps": 5}, True),
            ({"total_epochs": 2}, False),
            ({"total_epochs": 3}, True),
            ({"total_training_steps": 4, "total_epochs": 3}, False),
        ],
    )
    async def test_a_finished_run_goes_on_if_it_is_asked_for_more(
        self, store: InMemoryLightningStore, tmp_path: Path, asked: dict[str, Any], more: bool
    ):
        algorithm: VERL[Any] = VERL({"trainer": asked})
        run = await StoredRun.open(store, "rooms")
        assert not algorithm.has_more_to_do(run)
        checkpoints = RunCheckpoints(run, tmp_path, "tiny", resumes=True, epochs=2)
        await checkpoints.open()
        await checkpoints.saved(4, "there")
        assert algorithm.has_more_to_do(run) is more

    async def test_one_without_a_checkpoint_does_not_and_says_why(
        self, store: InMemoryLightningStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        algorithm: VERL[Any] = VERL({"trainer": {"total_training_steps": 9}})
        run = await StoredRun.open(store, "rooms")
        await RunCheckpoints(run, tmp_path, "tiny", resumes=True).open()
        assert not algorithm.has_more_to_do(run)
        assert "no checkpoint to go on from" in caplog.text
        assert "save_freq" in caplog.text


async def test_leftovers_of_a_run_are_cancelled_and_no_others(store: InMemoryLightningStore):
    requests = [
        EnqueueRolloutRequest(input=1, metadata={"run": "a"}),
        EnqueueRolloutRequest(input=2, metadata={"run": "b"}),
        EnqueueRolloutRequest(input=3),
    ]
    await store.enqueue_many_rollouts(requests)
    assert await cancel_leftovers(store, "a") == 1
    statuses = [rollout.status for rollout in await store.query_rollouts()]
    assert statuses == ["cancelled", "queuing", "queuing"]
    assert await cancel_leftovers(store, "a") == 0


async def test_leftovers_are_cancelled_until_none_is_left(monkeypatch: pytest.MonkeyPatch):
    """A store that answers one cancellation of a round only is asked again."""
    monkeypatch.setattr("agl_algorithm_kit.cancelling._TIMEOUT", 0.1)

    class Slow(InMemoryLightningStore):
        left = 0
        answers = 1

        async def wait_for_rollouts(self, **options: Any) -> Any:
            self.left = self.answers
            return await super().wait_for_rollouts(**options)

        async def update_rollout(self, *args: Any, **changes: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                await asyncio.Event().wait()
            return await super().update_rollout(*args, **changes)

    store = Slow()
    requests = [EnqueueRolloutRequest(input=index, metadata={"run": "a"}) for index in range(3)]
    await store.enqueue_many_rollouts(requests)
    assert await cancel_leftovers(store, "a") == 3
    assert [one.status for one in await store.query_rollouts()] == ["cancelled"] * 3
    await store.enqueue_many_rollouts(requests)
    store.answers = 0
    with pytest.raises(StoreUnavailableError, match="3 rollouts of the run 'a' are still open"):
        await cancel_leftovers(store, "a")


def test_the_last_step_is_verls(tmp_path: Path):
    assert latest_step(tmp_path) == 0
    checkpoint(tmp_path, 12)
    assert latest_step(tmp_path) == 12


def test_metrics_of_before_are_set_aside(tmp_path: Path):
    file = tmp_path / "run.jsonl"
    keep_metrics_file(file, 3)
    file.write_text("{}\n")
    keep_metrics_file(file, 3)
    assert not file.exists()
    assert (tmp_path / "run.until-3.jsonl").read_text() == "{}\n"


def test_metrics_of_two_ends_after_one_checkpoint_are_both_kept(tmp_path: Path):
    file = tmp_path / "run.jsonl"
    for text in ("first", "second", "third"):
        file.write_text(text)
        keep_metrics_file(file, 20)
    names = ["run.until-20.jsonl", "run.until-20.2.jsonl", "run.until-20.3.jsonl"]
    assert [(tmp_path / name).read_text() for name in names] == ["first", "second", "third"]
