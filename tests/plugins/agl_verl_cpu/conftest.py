"""A tiny model on verl's CPU platform. The tests of agl-algo-verl use it too."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from agl_verl_cpu.settings import ENVIRONMENT

HERE = Path(__file__).parent

# Set before verl is imported, which reads its platform once.
os.environ.update(ENVIRONMENT)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model."""
    make_model = runpy.run_path(str(HERE / "tiny_model.py"))["make_model"]
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def generator(tiny_model: Path) -> Any:
    from agl_verl_cpu.generation import Generator

    return Generator(str(tiny_model), seed=7)
