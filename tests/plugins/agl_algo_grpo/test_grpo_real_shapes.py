"""The example that measures published shapes: its smallest one, with tools, LoRA and overlap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)

EXAMPLE = Path(__file__).parents[3] / "examples/gpu/run.py"


def test_the_smallest_shape_is_measured_on_a_cpu():
    words = ["--real", "--quick", "--answer", "8", "--prompt", "16", "--turns", "2", "--json"]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *words], capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["size"], result["dtype"]) == ("qwen3-tiny", "float32")
    # Eight rollouts of two turns; a random model may end an answer early.
    assert 0 < result["sampled_tokens"] <= 8 * 2 * 8
    assert result["engine_alone"] > 0
    assert result["update_alone"] > 0
