"""Tiny models, built once for all tests."""

from __future__ import annotations

import os
from pathlib import Path

# Trainer and server share two cores; more threads only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from agl_tiny_model import build_model, build_tokenizer, teach


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Each test starts processes that import PyTorch, on machines that may be busy.
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of models: ``taught`` calls a tool, ``random``, and ``wide``."""
    folder = tmp_path_factory.mktemp("models")
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    taught = build_model(tokenizer)
    teach(taught, tokenizer)
    models = {
        "taught": taught,
        "random": build_model(tokenizer, seed=1),
        "wide": build_model(tokenizer, hidden_size=128),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def taught(models: Path) -> Path:
    return models / "taught"
