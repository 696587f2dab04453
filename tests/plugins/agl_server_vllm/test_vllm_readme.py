"""The first example of the README, with the stand-in in the place of vLLM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[3] / "plugins" / "agl_server_vllm" / "README.md"


def test_the_first_example(model: Path, fake_env: dict[str, str]):
    code = re.search(r"^```python norun\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert code is not None
    script = code[1].replace("Qwen/Qwen3-0.6B", str(model))
    script = script.replace("/envs/vllm/bin/python", sys.executable)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, **fake_env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    weights, adapter = done.stdout.split()
    assert len(weights) == len(adapter) == 12  # digests of the model and of the blank adapter
