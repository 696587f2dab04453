"""What the measurement reads from nvidia-smi, its options and its table; the rest needs PyTorch.

The comparison with TRL runs in an environment of its own: ``python3 dev.py heavy gpu``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "gpu"))

import monitor  # pyright: ignore[reportMissingImports]
import peer  # pyright: ignore[reportMissingImports]
from run import (  # pyright: ignore[reportMissingImports]
    command_of_peer,
    limits,
    logprob_deltas,
    parse,
    table,
)
from sizes import REAL, count  # pyright: ignore[reportMissingImports]

PROGRAM = """\
#!/bin/sh
for line in "0, 100" "50, 3000" "100, 2000" "100, 2000"; do echo "$line"; done
"""


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of programs without ``nvidia-smi``."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(monitor.shutil, "which", lambda name: _which(tmp_path, name))
    return tmp_path


def _which(folder: Path, name: str) -> str | None:
    return str(folder / name) if (folder / name).exists() else None


@pytest.fixture
def fake_gpu(no_gpu: Path) -> None:
    program = no_gpu / "nvidia-smi"
    program.write_text(PROGRAM)
    program.chmod(0o755)


def test_the_monitor_takes_the_mean_of_the_time_since_and_the_peak(fake_gpu: None):
    assert monitor.has_gpu()
    began = time.time()
    with monitor.GpuMonitor() as gpu:
        gpu.process.wait()
    assert gpu.busy_share(began) == 0.625
    later = [sample._replace(seconds=began + i) for i, sample in enumerate(gpu.samples)]
    gpu.samples[:] = later
    assert gpu.busy_share(began + 1.5) == 1.0
    assert gpu.peak_bytes() == 3000 * 2**20


def test_without_a_gpu_the_smallest_size_is_measured_on_the_hf_server(no_gpu: Path):
    options = parse([])
    assert (options.sizes, options.servers, options.rollouts) == (["10M"], ["hf"], 16)


def test_with_a_gpu_all_sizes_are_measured(fake_gpu: None):
    assert parse([]).sizes == ["10M", "100M", "1B"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rollouts", "12"], "multiple of 8"),
        (["--prompt", "3"], "more than 3"),
        (["--sizes", "2B"], "invalid choice"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        parse(arguments)
    assert message in capsys.readouterr().err


def test_sizes_are_what_they_are_called():
    millions = [count(size) / 1e6 for size in ("10M", "100M", "1B")]
    assert millions == pytest.approx([10, 100, 1000], rel=0.03)


def test_published_shapes_have_as_many_parameters_as_their_models():
    """Compare with the totals of the safetensors files of these models."""
    published = {
        "qwen3-0.6B": 596_049_920,
        "qwen3-4B": 4_022_468_096,
        "llama-1B": 1_235_814_400,
    }
    assert {size: count(size) for size in REAL} == published


def test_real_shapes_are_trained_with_tools_adapters_and_overlap(no_gpu: Path):
    options = parse(["--real", "--quick", "--lora", "8"])
    assert (options.sizes, options.steps, options.rollouts) == (["qwen3-tiny"], 1, 8)
    assert (options.turns, options.lora, options.overlap) == (3, 8, 1)


def test_the_limits_add_up_to_the_step():
    text = limits(
        [
            {
                "size": "10M",
                "server": "hf",
                "step_seconds": 10.0,
                "rollout_seconds": 6.0,
                "train_seconds": 3.0,
                "sampled_tokens": 400,
                "trained_tokens": 900,
                "engine_alone": 100.0,
                "update_alone": 450.0,
            }
        ]
    )
    assert "rollouts 6.00 s (engine alone 4.00 s, 100 tokens/s)" in text
    assert "update 3.00 s (forward and backward of separate rows 2.00 s, 450 tokens/s)" in text
    assert text.endswith("+ weights and waits 1.00 s")


def test_the_table_shows_a_measurement():
    result = {
        "parameters": 9_800_000,
        "server": "hf",
        "dtype": "float32",
        "sampled_tokens_per_second": 1234.5,
        "trained_tokens_per_second": 2345.6,
        "step_seconds": 1.25,
        "publish_seconds": 0.125,
        "gpu_busy": None,
        "peak_bytes": 3 * 2**29,
        "logprob_delta_mean": 3e-7,
        "logprob_delta_p99": 8e-7,
        "logprob_delta": 9.5e-7,
    }
    head, rule, on_cpu, on_gpu = table([result, {**result, "gpu_busy": 0.5}]).splitlines()
    assert head.count("|") == rule.count("|") == on_cpu.count("|")
    cells = [cell.strip() for cell in on_cpu.strip("|").split("|")]
    assert cells[:5] == ["9.8M", "hf", "float32", "1,234", "2,346"]
    assert cells[5:] == ["1.2 s", "0.12 s", "-", "1.5 GiB", "3.0e-07 / 8.0e-07 / 9.5e-07"]
    assert " 50% " in on_gpu


def test_differences_are_those_of_the_steps_that_say_it():
    names = ("logprob_delta_mean", "logprob_delta_p99", "logprob_delta")
    steps = [("0.1", "0.3", "0.9"), ("nan", "nan", "nan"), ("0.2", "0.4", "0.5")]
    rows: list[dict[str, str]] = [dict(zip(names, step, strict=True)) for step in steps]
    assert logprob_deltas(rows) == dict(zip(names, (pytest.approx(0.15), 0.4, 0.9), strict=True))
    assert all(map(math.isnan, logprob_deltas(rows[1:2]).values()))


# -- TRL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "size", "installed", "reason"),
    [
        ([], "10M", True, ""),
        ([], "10M", False, "trl and datasets not installed (pip install trl)"),
        ([], "qwen3-0.6B", True, "only the round sizes"),
        (["--turns", "2"], "10M", True, "only one turn"),
        (["--lora", "8"], "10M", True, "only one turn"),
        (["--overlap", "1"], "10M", True, "only one turn"),
    ],
)
def test_trl_is_measured_where_the_work_is_the_same(
    arguments: list[str],
    size: str,
    installed: bool,
    reason: str,
    no_gpu: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(peer, "find_spec", lambda _: object() if installed else None)
    said = peer.reason_to_leave_out(parse(arguments), size)
    assert said.startswith(reason)
    assert bool(said) == bool(reason)


def test_trl_gets_the_work_of_agl(no_gpu: Path):
    program, *words = command_of_peer(parse(["--rollouts", "24", "--answer", "7"]), "1B")
    assert Path(program).is_file()
    assert {"--size=1B", "--rollouts=24", "--group=8", "--prompt=32", "--answer=7"} < set(words)
    assert {"--steps=3", "--warm-up=1", "--gradient-checkpointing"} < set(words)
    assert "--gradient-checkpointing" not in command_of_peer(parse([]), "10M")


def test_the_line_of_trl_shows_both_steps_and_their_ratio():
    result: dict[str, Any] = {
        "size": "10M",
        "server": "hf",
        "step_seconds": 3.0,
        "sampled_tokens": 4096.0,
        "peak_bytes": 3 * 2**30,
        "peer": {
            "version": "1.2.3",
            "step_seconds": 2.0,
            "sampled_tokens": 4000.0,
            "peak_bytes": 2 * 2**30,
        },
    }
    assert peer.beside(result) == (
        "10M, hf, beside TRL 1.2.3: step 3.00 s and 2.00 s (agl / TRL 1.50), memory 3.0 GiB and "
        "2.0 GiB (1.50), sampled tokens of a step 4,096 and 4,000"
    )
    result["peer"] = {"left_out": "trl not installed"}
    assert peer.beside(result) == "10M, hf: TRL is not measured beside it: trl not installed"


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")
def test_agl_and_trl_do_the_same_work():
    program = Path(peer.__file__).with_name("run.py")
    options = ("--sizes", "10M", "--servers", "hf", "--steps", "1", "--rollouts", "8", "--json")
    done = subprocess.run(
        [sys.executable, program, *options, "--answer", "8"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    found = outcome["peer"]
    assert found["step_seconds"] > 0
    assert found["peak_bytes"] > 4 * outcome["parameters"]
    # A random model ends an answer early in one of hundreds.
    for sampled in (outcome["sampled_tokens"], found["sampled_tokens"]):
        assert 0.8 * 8 * 8 <= sampled <= 8 * 8
    assert peer.beside(outcome).startswith(f"10M, hf, beside TRL {found['version']}")
