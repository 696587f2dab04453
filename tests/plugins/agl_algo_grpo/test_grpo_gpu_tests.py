"""The tests on a GPU run on a CPU, too, so that their code is tried where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent / "gpu"


def run_tests(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS]
    # As here, the tests may run on installed packages, which the working tree would hide.
    path = os.pathsep.join(sys.path)
    without = {name: value for name, value in os.environ.items() if name != "AGL_TEST_GPU"}
    return subprocess.run(
        [*command, *options],
        env={**without, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_without_a_gpu_they_skip_with_the_reason():
    done = run_tests()
    assert done.returncode == 0, done.stdout[-3000:]
    assert "8 skipped" in done.stdout
    assert "PyTorch finds no GPU" in done.stdout
    assert "measured on" not in done.stdout


@pytest.mark.heavy
def test_on_a_cpu_they_pass_and_print_a_table():
    done = run_tests(AGL_TEST_GPU="cpu")
    assert done.returncode == 0, done.stdout[-3000:]
    table = done.stdout.partition("measured on CPU")[2]
    for what in ("greedy:", "seeded:", "engine / generate", "engine: peak", "update: loss adds"):
        assert what in table
    for what in ("server and trainer, random weights", "rl_digits: gain"):
        assert what in table
    assert "MISSED" not in table
