"""Ctrl+C ends the examples that train with exit code 130, and not with a table of half a run.

What they import besides the framework is replaced, so that no heavy package is needed.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import agl_core as agl

EXAMPLES = Path(__file__).parents[2] / "examples"


class Interrupted:
    """A trainer whose run Ctrl+C ended before its first result."""

    interrupted = True

    def __init__(self, **_: object) -> None:
        pass

    def fit(self, *_: object, **__: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("rl_digits", "--output"),
        ("two_agents", "--output"),
        ("sft_trl", "--folder"),
        ("sft_tinker", "--folder"),
    ],
)
def test_an_interrupted_example_prints_no_result(
    name: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    own = [file.stem for file in (EXAMPLES / name).glob("*.py")]
    for module in (*own, "agl_algo_grpo", "tinker"):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    monkeypatch.setattr(agl, "Trainer", Interrupted)
    monkeypatch.setattr(sys, "argv", ["main.py", option, str(tmp_path)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / name / "main.py"), run_name="__main__")
    assert ended.value.code == 130
    assert capsys.readouterr().out == ""
