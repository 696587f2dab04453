"""The kit is small and imports nothing heavy."""

import subprocess
import sys
from pathlib import Path

import agl_testing

HEAVY = ("torch", "transformers", "vllm", "ray", "openai", "litellm", "pandas", "numpy", "pymongo")


def test_it_is_smaller_than_a_megabyte_and_a_half():
    files = [path for path in Path(agl_testing.__file__).parent.rglob("*") if path.is_file()]
    packed = [path for path in files if "__pycache__" not in path.parts]
    assert 0 < sum(path.stat().st_size for path in packed) < 1_500_000


def test_it_imports_nothing_heavy():
    code = (
        "import sys, agl_testing, agl_testing.plugin\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stdout.split())
