"""One of verl's workers on a CPU, without Ray: log-probabilities of rows, and an update."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def found(tiny_model: Path) -> dict[str, Any]:
    """What one run of a worker printed: a second try of a test looks at the same run."""
    program = Path(__file__).with_name("one_worker.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tiny_model)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_logprobs_are_the_servers(found: dict[str, Any]):
    assert found["gap"] < 1e-5


def test_what_was_rewarded_becomes_likelier(found: dict[str, Any]):
    assert found["grad_norm"] > 0
    assert all((change > 0) == bool(row % 2) for row, change in enumerate(found["moved"]))


def test_the_loss_is_the_mean_over_rollouts(found: dict[str, Any]):
    """With the sampling policy the ratio is 1; half of the advantages are -1, the others +1."""
    assert found["loss"] == pytest.approx(0.0, abs=1e-6)


def test_a_checkpoint_brings_the_weights_back(found: dict[str, Any]):
    assert found["restored"] == 0.0
