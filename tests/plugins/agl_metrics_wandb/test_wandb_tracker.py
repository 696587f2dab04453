"""The tracker ``wandb``, offline: the records in the run's file."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2

from agl_core.metrics import recording
from agl_core.plugins import notify
from agl_core.types import Checkpoint, ResourcesUpdate
from agl_metrics_wandb import WandbTracker
from agl_testing import MetricsSuite
from tests.plugins.agl_tracking.test_run_tracker import train


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


def records_of(folder: Path) -> list[Any]:
    """Return the records of a finished run; W&B's own process writes on for a moment."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    for _ in range(300):
        chunks = chunks_of(file.read_bytes())
        records = [wandb_internal_pb2.Record.FromString(data) for data in chunks]
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError("the run's file has no end")


def chunks_of(data: bytes) -> Iterator[bytes]:
    """Read the log format of LevelDB, which W&B uses after 7 bytes of its own."""
    assert data.startswith(b":W&B")
    place, whole = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + size > len(data):
            return  # not written to its end
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


class TestWandbTracker(MetricsSuite):
    @pytest.fixture
    def metrics(self, tmp_path):
        return WandbTracker(folder=tmp_path, mode="offline")


def values(items: Any) -> dict[str, Any]:
    return {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}


def test_a_training_is_an_offline_run(tmp_path: Path):
    train(
        {
            "type": "wandb",
            "folder": tmp_path,
            "mode": "offline",
            "project": "rooms",
            "name": "first",
            "tags": ["t"],
            "config": {"lr": 0.1},
        }
    )
    records = records_of(tmp_path)
    run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name, list(run.tags)) == ("rooms", "first", ["t"])
    config = values(run.config.update)
    assert (config["lr"], config["algorithm"]) == (0.1, "TwoSteps")
    history = [values(r.history.item) for r in records if r.WhichOneof("record_type") == "history"]
    rewards = [(row["step"], row["reward"]) for row in history if "reward" in row]
    assert rewards == [(0, 0.5), (1, 1.5)]
    assert history[-1]["agl.attempts.total/succeeded/train"] == 4
    summary: dict[str, Any] = {}
    for record in records:
        summary |= values(record.summary.update)
    assert summary["prompt"] == "{x}!"
    exit_codes = [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"]
    assert exit_codes == [0]


def test_a_checkpoint_is_an_artifact(tmp_path: Path):
    checkpoint = tmp_path / "step-1"
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(b"weights")
    update = ResourcesUpdate(
        resources_id="run/x",
        create_time=1,
        update_time=1,
        version=1,
        resources={"run": Checkpoint(state={"checkpoint": str(checkpoint)})},
    )
    with recording(WandbTracker(folder=tmp_path, mode="offline", upload_checkpoints=True)):
        notify("run_started", run_id="r", mode="fit", config={})
        notify("resources_changed", resources=update, origin="grpo")
        notify("run_finished", run_id="r", mode="fit", error=RuntimeError("out of luck"))
    records = records_of(tmp_path)
    artifacts = [
        r.request.log_artifact.artifact for r in records if r.request.HasField("log_artifact")
    ]
    artifacts += [r.artifact for r in records if r.WhichOneof("record_type") == "artifact"]
    assert [entry.path for a in artifacts for entry in a.manifest.contents] == ["model.bin"]
    exit_codes = [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"]
    assert exit_codes == [1]
