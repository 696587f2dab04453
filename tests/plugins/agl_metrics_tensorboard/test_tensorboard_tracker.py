"""The tracker ``tensorboard``: event files, read back record by record."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto import event_pb2

from agl_metrics_tensorboard import TensorBoardTracker
from agl_testing import MetricsSuite
from tests.plugins.agl_tracking.test_run_tracker import train


def events_of(folder: Path) -> list[Any]:
    """Read the records of a run's event file: length, checksum, data, checksum."""
    (file,) = folder.glob("events.out.tfevents.*")
    event: Any = vars(event_pb2)["Event"]  # made when the module is imported
    data, events, place = file.read_bytes(), [], 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        events.append(event.FromString(data[place + 12 : place + 12 + size]))
        place += size + 16
    return events


class TestTensorBoardTracker(MetricsSuite):
    @pytest.fixture
    def metrics(self, tmp_path):
        return TensorBoardTracker(folder=tmp_path)


def test_a_training_is_an_event_file(tmp_path: Path):
    train({"type": "tensorboard", "folder": tmp_path, "name": "a run/1", "config": {"lr": 0.1}})
    train({"type": "tensorboard", "folder": tmp_path, "name": "a run/1"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_run_1", "a_run_1-2"]
    scalars: dict[tuple[str, int], float] = {}
    texts: dict[str, list[str]] = {}
    for event in events_of(tmp_path / "a_run_1"):
        for value in event.summary.value:
            if value.HasField("tensor"):
                text = b"".join(value.tensor.string_val).decode()
                texts.setdefault(value.tag, []).append(text)
            else:
                scalars[value.tag, event.step] = value.simple_value
    assert (scalars["reward", 0], scalars["reward", 1]) == (0.5, 1.5)
    assert scalars["agl.attempts.total/succeeded/train", 1] == 4
    assert texts["prompt/text_summary"] == ["    {x}", "    {x}!"]
    assert '"lr": 0.1' in texts["configuration/text_summary"][0]
    assert '"algorithm": "TwoSteps"' in texts["configuration/text_summary"][0]
