"""The README's first example runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[3] / "plugins" / "agl_proxy_litellm" / "README.md"


def test_the_first_example_runs(tmp_path: Path):
    (code,) = re.findall(r"```python norun\n(.*?)```", README.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
