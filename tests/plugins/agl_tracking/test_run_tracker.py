"""The base class of experiment trackers: which events become which calls."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import agl_core as agl
from agl_core.metrics import Metric, Metrics, recording
from agl_core.plugins import notify
from agl_core.types import Checkpoint, PromptTemplate, ResourcesUpdate
from agl_testing import MetricsSuite
from agl_tracking import Run, RunTracker, TrackerConfig

TAKEN = Metric("counter", "agl.attempts.taken", "Attempts.")


class Kept(RunTracker):
    """Keeps the calls that it gets."""

    def __init__(self, **options: Any) -> None:
        super().__init__(TrackerConfig(**options))
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[str] = set()

    def _keep(self, *call: Any) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)

    def begin(self, run: Run) -> None:
        self._keep("open", run)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._keep("metrics", step, dict(metrics))

    def write_text(self, step: int, name: str, text: str) -> None:
        self._keep("text", step, name, text)

    def write_file(self, step: int, name: str, path: Path) -> None:
        self._keep("file", step, name, path)

    def finish(self, error: BaseException | None) -> None:
        self._keep("finish", error)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.calls, self.threads = [], set()


class TestKept(MetricsSuite):
    @pytest.fixture
    def metrics(self):
        return Kept()


@agl.rollout
def agent(task: float, prompt_template: PromptTemplate) -> float:
    return task


class TwoSteps(agl.Algorithm):
    """Reports two steps and improves the prompt in between."""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        from agl_algorithm_kit import run_batch

        for step, template in enumerate(["{x}", "{x}!"]):
            prompt = PromptTemplate(template=template, engine="f-string")
            await run_batch(
                self.get_store(), train_dataset, resources={"prompt": prompt}, mode="train"
            )
            await self.get_store().add_resources({"prompt": prompt})
            self.report_step(step, {"reward": 0.5 + step, "bad": float("nan")})


def train(tracker: Any, strategy: Any = "shm") -> None:
    prompt = PromptTemplate(template="{x}", engine="f-string")
    trainer = agl.Trainer(
        algorithm=TwoSteps(),
        strategy=strategy,
        tracker=tracker,
        initial_resources={"prompt": prompt},
    )
    trainer.fit(agent, [0.25, 0.75])


def test_a_training_is_written_in_order_and_in_a_thread_of_its_own():
    tracker = Kept(name="first", config={"lr": 0.1})
    train(tracker)
    kinds = [call[0] for call in tracker.calls]
    assert kinds[0] == "open"
    assert kinds[-1] == "finish"
    assert tracker.calls[-1] == ("finish", None)
    run = tracker.calls[0][1]
    assert (run.name, run.mode) == ("first", "fit")
    assert run.config["algorithm"] == "TwoSteps"
    assert run.config["lr"] == 0.1
    assert [call for call in tracker.calls if call[0] == "text"] == [
        ("text", 0, "prompt", "{x}"),
        ("text", 0, "prompt", "{x}!"),
    ]
    steps = [call for call in tracker.calls if call[0] == "metrics"]
    assert [step for _, step, _ in steps] == [0, 1, 1]
    assert [metrics["reward"] for _, _, metrics in steps[:2]] == [0.5, 1.5]
    assert not any("bad" in metrics for _, _, metrics in steps)
    last = steps[-1][2]
    assert last["agl.attempts.reward/train"] == 0.5
    assert last["agl.attempts.total/succeeded/train"] == 4
    assert not any(name.startswith("agl.store") for name in last)
    assert tracker.threads == {"agl-tracking"}


def test_two_runs_of_one_tracker_are_two_runs():
    tracker = Kept()
    train(tracker)
    train(tracker)
    kinds = [call[0] for call in tracker.calls]
    last = [number - 1 for number, kind in enumerate(kinds) if kind == "finish"]
    ends = [tracker.calls[number][2] for number in last]
    assert [end["agl.attempts.total/succeeded/train"] for end in ends] == [4, 4]


def test_a_checkpoint_is_a_path_and_uploaded_if_asked(tmp_path: Path):
    for upload in (False, True):
        tracker = Kept(upload_checkpoints=upload)
        with recording(tracker):
            notify("run_started", run_id="r", mode="fit", config={})
            checkpoint = Checkpoint(state={"checkpoint": str(tmp_path)})
            update = ResourcesUpdate(
                resources_id="run/x",
                create_time=1,
                update_time=1,
                version=1,
                resources={"run": checkpoint},
            )
            for _ in range(2):
                notify("resources_changed", resources=update, origin="grpo")
            notify("run_finished", run_id="r", mode="fit", error=None)
        files = [("file", 0, "checkpoint", tmp_path)] * upload
        assert tracker.calls[1:-1] == [("text", 0, "checkpoint", str(tmp_path)), *files]


class SavesThroughTheRun(agl.Algorithm):
    """Tries a prompt, and saves checkpoints as GRPO with several policies does."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        run = self.get_run()
        tried = PromptTemplate(template="{x}?", engine="f-string")
        best = PromptTemplate(template="{x}!", engine="f-string")
        await run.put_resources("first", {"prompt": tried}, latest=False)
        await run.put_resources("second", {"prompt": best})
        state = {"solver": str(self.folder), "judge": "/not/there", "long": "/" + 5000 * "x"}
        await run.save({**state, "best": "second", "seen": [str(self.folder)]})


@pytest.mark.parametrize("name", [None, "nightly"])
def test_what_an_algorithm_stores_through_its_run_is_written(tmp_path: Path, name: str | None):
    tracker = Kept(upload_checkpoints=True)
    prompt = PromptTemplate(template="{x}", engine="f-string")
    trainer = agl.Trainer(
        algorithm=SavesThroughTheRun(tmp_path),
        strategy="shm",
        tracker=tracker,
        run=name,
        initial_resources={"prompt": prompt},
    )
    trainer.fit(agent, [0.5])
    assert [call for call in tracker.calls if call[0] in ("text", "file")] == [
        ("text", 0, "prompt", "{x}?"),
        ("text", 0, "prompt", "{x}!"),
        ("text", 0, "checkpoint-solver", str(tmp_path)),
        ("file", 0, "checkpoint-solver", tmp_path),
    ]


def test_a_key_of_a_model_is_not_written():
    tracker = Kept()
    llm = agl.LLM(endpoint="http://localhost", model="m", api_key="secret-key")
    update = ResourcesUpdate(
        resources_id="r", create_time=1, update_time=1, version=1, resources={"llm": llm}
    )
    with recording(tracker):
        notify("run_started", run_id="r", mode="fit", config={})
        notify("resources_changed", resources=update, origin="grpo")
        notify("run_finished", run_id="r", mode="fit", error=None)
    (text,) = [call[3] for call in tracker.calls if call[0] == "text"]
    assert '"model": "m"' in text
    assert "secret-key" not in text


def test_a_tracker_that_fails_does_not_end_the_run(caplog):
    class Down(Kept):
        def _keep(self, *call: Any) -> None:
            raise ConnectionError("no server")

    train(Down())
    assert caplog.text.count("Down failed; the run goes on") == 1
    assert "no server" in caplog.text


def test_a_run_whose_upload_hangs_is_finished_and_nothing_of_it_reaches_the_next(
    tmp_path: Path, caplog
):
    uploading, hangs, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Kept):
        def begin(self, run: Run) -> None:
            self.run = run.run_id

        def write_text(self, step: int, name: str, text: str) -> None:
            pass

        def write_file(self, step: int, name: str, path: Path) -> None:
            uploading.set()
            assert hangs.wait(60)
            self._keep("uploaded", self.run)
            ended.set()

        def finish(self, error: BaseException | None) -> None:
            self._keep("finish", self.run)

    tracker = Slow(upload_checkpoints=True, upload_seconds=0.01)
    with recording(tracker):
        notify("run_started", run_id="first", mode="fit", config={})
        notify("run_saved", run="", state={"checkpoint": str(tmp_path)}, origin="grpo")
        assert uploading.wait(60)
        notify("algorithm_step", algorithm="grpo", step=0, metrics={"reward": 1.0})
        notify("run_finished", run_id="first", mode="fit", error=None)
    assert tracker.calls == [("finish", "first")]
    assert "Slow did not take the rest of the run within 0.01 s" in caplog.text
    with recording(tracker):
        notify("run_started", run_id="second", mode="fit", config={})
        notify("run_finished", run_id="second", mode="fit", error=None)
    hangs.set()
    assert ended.wait(60)
    assert tracker.calls[1:] == [("finish", "second"), ("uploaded", "first")]


def test_an_error_of_the_run_reaches_the_tracker():
    class Broken(agl.Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            raise RuntimeError("out of luck")

    tracker = Kept()
    prompt = PromptTemplate(template="{x}", engine="f-string")
    trainer = agl.Trainer(
        algorithm=Broken(), strategy="shm", tracker=tracker, initial_resources={"prompt": prompt}
    )
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.fit(agent, [1.0])
    assert isinstance(tracker.calls[-1][1], RuntimeError)


def test_the_backend_multi_hands_events_on():
    from agl_metrics_console import MultiMetrics

    tracker = Kept()
    train(MultiMetrics([tracker]))
    assert [call[0] for call in tracker.calls][:: len(tracker.calls) - 1] == ["open", "finish"]
    assert tracker.calls[-2][2]["agl.attempts.total/succeeded/train"] == 4


def child(tracker: Kept) -> None:
    with recording(tracker):
        notify("algorithm_step", algorithm="x", step=0, metrics={"reward": 1.0})
        notify("run_finished", run_id="r", mode="fit", error=None)
    assert not [call for call in tracker.calls if call[0] != "open"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_copy_in_another_process_writes_nothing():
    tracker = Kept()
    with recording(tracker):
        notify("run_started", run_id="r", mode="fit", config={})
        process = multiprocessing.get_context("fork").Process(target=child, args=(tracker,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        notify("run_finished", run_id="r", mode="fit", error=None)
    assert [call[0] for call in tracker.calls] == ["open", "finish"]
    child(pickle.loads(pickle.dumps(tracker)))


def record_one(metrics: Metrics) -> None:
    metrics.record(TAKEN, 1, ())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_while_a_thread_records_is_not_blocked():
    metrics = Kept()
    metrics.record(TAKEN, 1, ())
    process = multiprocessing.get_context("fork").Process(target=record_one, args=(metrics,))
    with metrics._sums._lock:  # as a thread does that the child lacks
        process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0
