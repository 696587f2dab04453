"""What the package does where the libraries that build a model are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agl_tiny_model import make_tiny_model


def test_importing_it_needs_only_the_standard_library():
    code = (
        "import sys, agl_tiny_model\n"
        "top = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'numpy', 'agl_core'} & top))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_interpreter_that_cannot_build_a_model_says_why(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no module named torch' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"(?s)did not build .*no module named torch"):
        make_tiny_model(tmp_path / "model", python=python)
    assert not (tmp_path / "model").exists()
