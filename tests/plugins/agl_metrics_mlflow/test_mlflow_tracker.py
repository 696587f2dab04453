"""The tracker ``mlflow``, with a real server on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from agl_core.metrics import recording
from agl_core.plugins import notify
from agl_core.types import Checkpoint, ResourcesUpdate
from agl_metrics_mlflow import MlflowTracker
from agl_testing import MetricsSuite
from tests.plugins.agl_tracking.test_run_tracker import train

pytestmark = pytest.mark.timeout(400)  # a cold start of the server imports for a minute


class TestMlflowTracker(MetricsSuite):
    @pytest.fixture
    def metrics(self, tmp_path):
        return MlflowTracker(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    port = unused_tcp_port_factory()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
                *("--artifacts-destination", str(folder / "artifacts")),
            ],
            cwd=folder,
            # its eight job processes import MLflow again: with them it stops in 30 s of a slow CPU
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except urllib.error.URLError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_a_training_is_a_run_of_the_server(server: str, tmp_path: Path):
    train(
        {
            "type": "mlflow",
            "tracking_uri": server,
            "experiment": "rooms",
            "name": "first",
            "config": {"lr": 0.1, "long": "x" * 9000, "odd:name": 1},
            "tags": {"team": "a"},
        }
    )
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("rooms")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert (run.data.params["lr"], run.data.params["algorithm"]) == ("0.1", "TwoSteps")
    assert run.data.tags["team"] == "a"
    history = client.get_metric_history(run.info.run_id, "reward")
    assert sorted((m.step, m.value) for m in history) == [(0, 0.5), (1, 1.5)]
    assert run.data.metrics["agl.attempts.total/succeeded/train"] == 4
    files = {
        "prompt/0001-step-0.txt": "{x}",
        "prompt/0002-step-0.txt": "{x}!",
        "configuration.json": '"lr": 0.1',
    }
    for name, text in files.items():
        path = client.download_artifacts(run.info.run_id, name, str(tmp_path))
        assert text in Path(path).read_text()


def test_a_checkpoint_is_uploaded_and_a_failed_run_says_so(server: str, tmp_path: Path):
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
    tracker = MlflowTracker(tracking_uri=server, experiment="failed", upload_checkpoints=True)
    with recording(tracker):
        notify("run_started", run_id="r", mode="fit", config={})
        notify("resources_changed", resources=update, origin="grpo")
        notify("run_finished", run_id="r", mode="fit", error=RuntimeError("out of luck"))
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("failed")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert "out of luck" in run.data.tags["error"]
    (file,) = client.list_artifacts(run.info.run_id, "checkpoint/0")
    assert (file.path, file.file_size) == ("checkpoint/0/model.bin", 7)
