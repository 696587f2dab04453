"""Measures sampling: tokens per CPU second of the engine of agl-server-hf and of ``generate``.

It needs the environment of agl-server-hf. As a script it takes the names of cases::

    .envs/agl_server_hf/bin/python tests/benchmark/bench_sampling.py 10M:16 rl_digits:64

``AGL_BENCH_BESIDE`` names another checkout, whose engine is measured beside this one. Each engine
is a process of its own with one thread. The processes sample the same batch in turn, so that they
share the machine's noise, and the ratios are those of CPU seconds. A batch has prompts of 32 and
sequences of 512 tokens in all (``--length``); the models are random. ``first`` is a process's
first batch of that size.
"""

# pyright: reportMissingImports=false
# The models' modules are in folders of examples.

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.benchmark

HERE: Final = Path(__file__).resolve().parents[2]
PROMPT, LENGTH = 32, 512
BATCHES: Final = (1, 16, 64)
MODELS: Final = ("rl_digits", "10M")
ROUNDS: Final = 3
"""Number of measured batches per engine and case, after a first one that is printed apart."""


# -- the process of one engine ---------------------------------------------------------------------

Sampler = Callable[[list[list[int]], int], int]
"""Samples so many tokens for each prompt; returns the number of sampled tokens."""


def build_models(folder: Path) -> None:
    """Write the models, with random weights."""
    sys.path[:0] = [str(HERE / "examples" / example) for example in ("rl_digits", "gpu")]
    from make_model import make_model
    from sizes import build

    make_model(folder / "rl_digits", warmup_steps=0)
    build(folder / "10M", "10M", length=LENGTH)


def serve(what: str) -> None:
    """Sample the batches that the input asks for, one a line; write what each has cost."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    samplers: dict[str, tuple[int, Sampler]] = {}
    for line in sys.stdin:
        folder, count, answer = json.loads(line)
        if folder not in samplers:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            make = sampler_of_generate if what == "generate" else _engine
            samplers[folder] = model.config.vocab_size, make(model)
        vocabulary, sample = samplers[folder]
        generator = torch.Generator().manual_seed(count)
        prompts = torch.randint(5, vocabulary, (count, PROMPT), generator=generator).tolist()
        cpu = time.process_time()
        tokens = sample(prompts, answer)
        cpu = time.process_time() - cpu
        assert tokens == count * answer, tokens
        print(json.dumps(tokens / cpu), flush=True)


def sampler_of_generate(model: Any) -> Sampler:
    """Return a sampler by Transformers' ``generate``; its prompts are equally long."""
    import torch

    def sample(prompts: list[list[int]], answer: int) -> int:
        ids = torch.tensor(prompts, device=model.device)
        with torch.no_grad():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                min_new_tokens=answer,
                max_new_tokens=answer,
                pad_token_id=0,
            )
        return output.shape[0] * (output.shape[1] - ids.shape[1])

    return sample


def _engine(model: Any) -> Sampler:
    from agl_server_hf.engine import Engine, Generation, Sampling

    engine = Engine(model, eos_ids=[], max_batch=max(BATCHES), seed=0)
    engine.start()
    emitted: queue.Queue[Any] = queue.Queue()
    # Nobody streams here. An older engine knows no other way.
    names = {field.name for field in dataclasses.fields(Generation)}
    whole: dict[str, Any] = {"stream": False} if "stream" in names else {}

    def sample(prompts: list[list[int]], answer: int) -> int:
        sampling = Sampling(max_tokens=answer)
        generations = [Generation(prompt, sampling, emitted.put, **whole) for prompt in prompts]
        for generation in generations:
            engine.submit(generation)
        running = len(generations)
        while running:
            token = emitted.get()
            if isinstance(token, Exception):
                raise token
            running -= token.finish_reason is not None
        return sum(len(generation.token_ids) for generation in generations)

    return sample


# -- the comparison --------------------------------------------------------------------------------


def start(what: str, checkout: Path = HERE) -> subprocess.Popen[str]:
    """Start the process of an engine; the code of agl is that of the checkout."""
    sources = [checkout, *(path.parent for path in checkout.glob("plugins/*/src/*"))]
    path = os.pathsep.join(map(str, sources))
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


def ask(process: subprocess.Popen[str], folder: Path, count: int, answer: int) -> float:
    """Let a process sample a batch; return its tokens per CPU second."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([str(folder), count, answer]) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def run_cases(names: Sequence[str], length: int = LENGTH, rounds: int = ROUNDS) -> Iterator[str]:
    beside = os.environ.get("AGL_BENCH_BESIDE")
    engines = {"now": HERE, "generate": HERE, **({"before": Path(beside)} if beside else {})}
    others = list(engines)[1:]
    yield (
        f"{'tokens per CPU second':24}"
        + "".join(f"{engine:>10}{'first':>8}" for engine in engines)
        + "".join(f"{'now/' + engine:>14}" for engine in others)
    )
    cases = [(model, count) for model in MODELS for count in BATCHES]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        subprocess.run([sys.executable, __file__, "--build", folder], check=True)
        processes = {
            engine: stack.enter_context(start(engine, checkout))
            for engine, checkout in engines.items()
        }
        for process in processes.values():
            stack.callback(process.kill)
        for model, count in cases:
            if names and f"{model}:{count}" not in names:
                continue
            speeds = [
                {
                    engine: ask(process, Path(folder, model), count, length - PROMPT)
                    for engine, process in processes.items()
                }
                for _ in range(rounds + 1)
            ]
            line = f"{f'{model}, {count} sequences':24}"
            for engine in engines:
                median = statistics.median(one[engine] for one in speeds[1:])
                line += f"{median:10.0f}{speeds[0][engine]:8.0f}"
            for engine in others:
                ratio = statistics.median(one["now"] / one[engine] for one in speeds[1:])
                line += f"{ratio:14.2f}"
            yield line


def test_sampling_speed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the environment of agl-server-hf")
    with capsys.disabled():
        print()
        for line in run_cases([]):
            print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["--build"]:
        build_models(Path(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser(description="Measure sampling on this machine.")
        parser.add_argument("cases", nargs="*", metavar="MODEL:BATCH")
        parser.add_argument("--length", type=int, default=LENGTH)
        parser.add_argument("--rounds", type=int, default=ROUNDS)
        options = parser.parse_args()
        for line in run_cases(options.cases, options.length, options.rounds):
            print(line, flush=True)
