"""Measures where log-probabilities of server and trainer differ in bfloat16.

Rows of the model of ``examples/rl_digits`` are read again and again: with other attention, padding,
a key-value cache, one head in float32, a softmax in bfloat16. Each way is compared with one whole
pass in bfloat16 per row, and with float32 weights::

    .envs/agl_algo_grpo/bin/python tests/benchmark/bench_precision.py
"""

# pyright: reportMissingImports=false
# The model's module is in a folder of an example.

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.benchmark

HERE: Final = Path(__file__).resolve().parents[2]
ROWS, PROMPT, ANSWER = 6, 48, 24


def measure() -> list[str]:
    """Return a line per way of reading: mean and largest difference per token of the answers."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(HERE / "examples" / "rl_digits"))
        from make_model import make_model

        make_model(Path(folder), warmup_steps=30)

        def load(dtype: Any, attention: str = "sdpa") -> Any:
            return AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=attention
            ).eval()

        half = load(torch.bfloat16)
        exact = load(torch.float32)
        eager = load(torch.bfloat16, "eager")
        served = load(torch.bfloat16)  # the engine changes its attention
    lengths = [PROMPT - row for row in range(ROWS)]
    prompts = [torch.randint(4, half.config.vocab_size, (1, n)) for n in lengths]
    rows, sampled = sample(served, prompts)
    with torch.no_grad():

        def logprobs(logits: Any, row: Any, dtype: Any = torch.float32) -> Any:
            logged = logits[:, :-1].to(dtype).log_softmax(-1).float()
            picked = logged.gather(-1, row[:, 1:, None])[..., 0]
            return picked[0, -ANSWER:]

        def whole(model: Any, dtype: Any = torch.float32) -> list[Any]:
            return [logprobs(model(row).logits, row, dtype) for row in rows]

        def one_float32_head() -> list[Any]:
            found = []
            for row in rows:
                states = half.model(row).last_hidden_state
                weight = half.lm_head.weight
                found.append(logprobs(states.float() @ weight.float().T, row))
            return found

        def padded(side: str) -> list[Any]:
            longest = max(row.shape[1] for row in rows)
            ids = torch.zeros((ROWS, longest), dtype=torch.long)
            mask = torch.zeros((ROWS, longest), dtype=torch.long)
            for at, row in enumerate(rows):
                n = row.shape[1]
                place = slice(longest - n, None) if side == "left" else slice(0, n)
                ids[at, place], mask[at, place] = row[0], 1
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            logits = half(ids, attention_mask=mask, position_ids=positions).logits
            found = []
            for at, row in enumerate(rows):
                n = row.shape[1]
                place = slice(longest - n, None) if side == "left" else slice(0, n)
                found.append(logprobs(logits[at : at + 1, place], row))
            return found

        def cached(model: Any) -> list[Any]:
            found = []
            for row in rows:
                first = row.shape[1] - ANSWER
                out = model(row[:, :first], use_cache=True)
                pieces = [out.logits[:, -1:]]
                for at in range(first, row.shape[1] - 1):
                    out = model(row[:, at : at + 1], past_key_values=out.past_key_values)
                    pieces.append(out.logits)
                logged = torch.cat(pieces, 1).float().log_softmax(-1)
                found.append(logged.gather(-1, row[:, first:, None])[0, :, 0])
            return found

        base, truth = whole(half), whole(exact)
        ways: dict[str, Callable[[], list[Any]]] = {
            "the same pass again": lambda: whole(half),
            "attention written out (eager)": lambda: whole(eager),
            "padding on the right": lambda: padded("right"),
            "padding on the left": lambda: padded("left"),
            "token by token, with a cache": lambda: cached(half),
            "engine of agl-server-hf": lambda: sampled,
            "logits of the head in float32": one_float32_head,
            "softmax in bfloat16": lambda: whole(half, torch.bfloat16),
            "softmax in bfloat16, float32 model": lambda: whole(exact, torch.bfloat16),
            "float32 model, token by token": lambda: cached(exact),
        }
        head = f"{'':38}{'against bfloat16':>20}{'against float32':>20}"
        lines = [head, f"{'':38}" + f"{'mean':>10}{'largest':>10}" * 2]
        lines.append(line("one pass in bfloat16", base, base, truth))
        lines += [line(name, way(), base, truth) for name, way in ways.items()]
    return lines


def sample(model: Any, prompts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return rows that the engine samples, int64 ``[1, L]``, and their log-probabilities."""
    import torch

    from agl_server_hf.engine import Engine, Generation, Sampling

    ended = threading.Semaphore(0)
    sampling = Sampling(ANSWER, ignore_eos=True)
    generations = [
        Generation(prompt[0].tolist(), sampling, lambda _: ended.release(), stream=False)
        for prompt in prompts
    ]
    engine = Engine(model, eos_ids=[], max_batch=len(prompts), seed=0)
    engine.start()
    engine.submit(*generations)
    for _ in generations:
        ended.acquire()
    engine.close()
    rows = [torch.tensor([[*one.prompt, *one.token_ids]]) for one in generations]
    return rows, [torch.tensor([token.logprob for token in one.tokens]) for one in generations]


def line(name: str, found: Sequence[Any], base: Sequence[Any], truth: Sequence[Any]) -> str:
    import torch

    cells = ""
    for other in (base, truth):
        gaps = torch.cat([(a - b).abs() for a, b in zip(found, other, strict=True)])
        cells += f"{gaps.mean():10.4f}{gaps.max():10.4f}"
    return f"{name:38}{cells}"


def test_precision(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the environment of agl-algo-grpo")
    with capsys.disabled():
        print("\n" + "\n".join(measure()))


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print("\n".join(measure()))
