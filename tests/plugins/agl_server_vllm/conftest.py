from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agl_testing.tiny_model import make_tiny_model

sys.path.insert(0, str(Path(__file__).parent))  # for vllm_parts


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has a real vLLM."""
    python = os.environ.get("AGL_TEST_VLLM_PYTHON", "")
    if not Path(python).is_file():
        pytest.fail(
            f"AGL_TEST_VLLM_PYTHON is {python!r} and no Python that has vLLM; "
            "run `python3 dev.py heavy agl_server_vllm`"
        )
    return python


@pytest.fixture(scope="session")
def tiny(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, with two adapters beside it: ``adapter-1`` and ``adapter-2``."""
    folder = tmp_path_factory.mktemp("tiny")
    adapters = [folder / "adapter-1", folder / "adapter-2"]
    return make_tiny_model(folder / "tiny", python=vllm_python, adapters=adapters)


@pytest.fixture(scope="session")
def other(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shape and of other weights."""
    folder = tmp_path_factory.mktemp("other") / "other"
    return make_tiny_model(folder, python=vllm_python, seed=5, taught=False)
