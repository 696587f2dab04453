"""Tiny models, built once for all tests."""

from __future__ import annotations

import os
from pathlib import Path

# Two cores, several processes: threads would only get into each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from agl_algo_grpo import HFServer
from agl_testing.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models of one shape: ``taught`` (it calls a tool), ``random``, and adapters."""
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model(folder / "taught", adapters=[folder / "lora-0", folder / "lora-1"])
    make_tiny_model(folder / "random", seed=1, taught=False)
    make_tiny_model(folder / "wide", hidden_size=128, taught=False)
    return folder


@pytest.fixture(scope="session")
def taught(models: Path) -> Path:
    return models / "taught"


@pytest.fixture
def server(taught: Path) -> HFServer:
    return HFServer(taught, threads=1, seed=0)
