"""PyTorch's threads: how many a model gets, and which thread of the server has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agl_server_hf import default_threads


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr("agl_server_hf.threads._QUOTA", tmp_path / "cpu.max")


@pytest.mark.parametrize(
    ("quota", "alone", "shared"),
    [
        (None, 8, 4),
        ("max 100000", 8, 4),
        ("600000 100000", 6, 3),
        ("250000 100000", 3, 1),
        ("50000 100000", 1, 1),
        ("6400000 100000", 8, 4),
    ],
)
def test_a_model_gets_what_the_container_may_use_or_half_of_it_beside_others(
    quota: str | None, alone: int, shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert default_threads(shared=False) == alone
    assert default_threads(shared=True) == shared


def test_a_number_in_the_environment_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert default_threads(shared=True) == 8


@pytest.mark.parametrize(("given", "environment", "threads"), [(3, "2", 3), (None, "2", 2)])
def test_only_the_engines_thread_of_a_server_has_more_than_one(
    given: int | None, environment: str, threads: int, taught: Path
):
    code = f"""
import torch
from agl_server_hf import HFServerConfig
from agl_server_hf.worker import _build

engine, _ = _build(HFServerConfig(path={str(taught)!r}, threads={given}), set())
engine.start()
found = []
engine.change(lambda model: found.append(torch.get_num_threads()) or model).result()
engine.close()
print(torch.get_num_threads(), *found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", str(threads)]
