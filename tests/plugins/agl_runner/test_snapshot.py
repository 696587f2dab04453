from __future__ import annotations

import json
import os
import platform
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from agl_runner import system_snapshot

KEYS = {
    "timestamp", "host", "os", "cpu_name", "cpu_cores", "cpu_threads", "cpu_usage_pct",
    "mem_used_gb", "mem_total_gb", "mem_pct", "disk_used_gb", "disk_total_gb", "disk_pct",
    "bytes_sent_mb", "bytes_recv_mb",
}  # fmt: skip


def test_keys_and_values() -> None:
    snapshot = system_snapshot()
    assert set(snapshot) == KEYS
    assert json.loads(json.dumps(snapshot)) == snapshot
    taken = datetime.fromisoformat(snapshot["timestamp"])
    assert abs((datetime.now().astimezone() - taken).total_seconds()) < 5
    assert taken.microsecond == 0
    assert snapshot["host"] == platform.node()
    assert snapshot["cpu_name"]
    assert snapshot["cpu_threads"] == psutil.cpu_count()
    assert snapshot["mem_total_gb"] == round(psutil.virtual_memory().total / 2**30, 2)
    assert 0 < snapshot["mem_used_gb"] <= snapshot["mem_total_gb"]
    assert 0 <= snapshot["disk_used_gb"] <= snapshot["disk_total_gb"]
    assert 0 <= snapshot["cpu_usage_pct"] <= 100


@pytest.fixture
def fake_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose nvidia-smi prints the content of the file ``answer``."""
    if os.name == "nt":
        pytest.skip("the fake is a shell script")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_gpus(fake_gpus: Path) -> None:
    (fake_gpus / "answer").write_text(
        "NVIDIA H200, 97, 120000, 143771, 61\nNVIDIA H200, [N/A], 5, 143771, 30\n\n"
    )
    assert system_snapshot(include_gpu=True)["gpus"] == [
        {
            "gpu": "NVIDIA H200",
            "util_pct": 97,
            "mem_used_mb": 120000,
            "mem_total_mb": 143771,
            "temp_c": 61,
        },
        {
            "gpu": "NVIDIA H200",
            "util_pct": None,
            "mem_used_mb": 5,
            "mem_total_mb": 143771,
            "temp_c": 30,
        },
    ]
    asked = (fake_gpus / "asked").read_text()
    assert "--query-gpu=name,utilization.gpu,memory.used,memory.total,temperature.gpu" in asked
    assert "--format=csv,noheader,nounits" in asked


def test_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system_snapshot(include_gpu=True)["gpus"] == []
    assert "gpus" not in system_snapshot()
