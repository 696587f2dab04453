"""Tests on a GPU: their device, their model, and a table of what they measured.

Without a GPU they skip. ``AGL_TEST_GPU=cpu`` runs them on the CPU with a tiny model, so that their
own code is tried. ``python3 dev.py gpu`` runs all of them and prints the table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugins.agl_algo_grpo.gpu.measures import Bars, Work

ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / "examples/gpu"))
ON_CPU = "AGL_TEST_GPU"
"""Environment variable: ``cpu`` runs the tests on the CPU if there is no GPU."""


@pytest.fixture(scope="session")
def work() -> Work:
    """The sizes of the tests, by the device; skips without one."""
    if torch.cuda.is_available():
        # Half the rollouts of a usual step, and a model that samples them within seconds.
        # In 12 steps the reward rises from 0.24 to 0.8, as on a CPU in float32.
        return Work("cuda", "100M", 64, 256, 128, learning_steps=12, learning_gain=0.3)
    if os.environ.get(ON_CPU) == "cpu":
        # So small that all tests take a minute or two.
        return Work("cpu", "qwen3-tiny", 8, 40, 24, learning_steps=6, learning_gain=0.1)
    pytest.skip(f"PyTorch finds no GPU; {ON_CPU}=cpu tries the test on the CPU with a tiny model")


@pytest.fixture(scope="session")
def model(work: Work, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model of random weights in bfloat16."""
    from sizes import build

    folder = tmp_path_factory.mktemp("gpu") / "model"
    return build(folder, work.size, length=work.length, device=work.device)


@pytest.fixture
def bars(work: Work, record_property: Any) -> Iterator[Bars]:
    """Figures of a test, and the bars that they must hold; the table shows them."""
    del work  # skips first
    found = Bars(record_property)
    yield found
    assert found.checked, "the test has not called bars.check()"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the tests measured, those that failed, too."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [value for one in reports for name, value in one.user_properties if name == Bars.NAME]
    if not rows:
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, tiny model"
    terminalreporter.section(f"measured on {device}, PyTorch {torch.__version__}")
    rows = [["", "measured", "bar", ""], *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())
