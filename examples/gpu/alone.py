"""What the engine, and a forward and backward pass, do alone: the limits of a training step."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["engine_tokens_per_second", "update_tokens_per_second"]


def engine_tokens_per_second(folder: Path, *, sequences: int, prompt: int, answer: int) -> float:
    """Return how fast the hf server's engine samples, without requests and agents.

    Args:
        folder: Folder of the model.
        sequences: Number of sequences, sampled together.
        prompt: Tokens of each prompt.
        answer: Tokens of each answer.
    """
    import torch

    from agl_server_hf import default_threads
    from agl_server_hf.engine import Engine, Generation, Sampling

    model = _load(folder)
    threads = default_threads(shared=True)  # those of the server
    engine = Engine(model, eos_ids=[], max_batch=sequences, seed=0, threads=threads)
    engine.start()
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(260, model.config.vocab_size, (sequences, prompt), generator=generator)
    seconds = 0.0
    for _ in range(2):  # the first batch warms up
        ended = threading.Semaphore(0)
        failures: list[Exception] = []

        def emit(token: Any, ended: Any = ended, failures: list[Exception] = failures) -> None:
            if isinstance(token, Exception):
                failures.append(token)
                ended.release()
            elif token.finish_reason is not None:
                ended.release()

        sampling = Sampling(max_tokens=answer, ignore_eos=True)
        batch = [Generation(ids, sampling, emit, stream=False) for ids in prompts.tolist()]
        began = time.perf_counter()
        engine.submit(*batch)
        for _ in batch:
            ended.acquire()
        if failures:
            raise failures[0]
        seconds = time.perf_counter() - began
    engine.close()
    return sequences * answer / seconds


def update_tokens_per_second(folder: Path, *, row: int, rows: int, checkpointing: bool) -> float:
    """Return how fast forward and backward passes read rows, without anything else.

    Args:
        folder: Folder of the model.
        row: Tokens of a row.
        rows: Rows of a micro-batch.
        checkpointing: Whether activations are computed again in the backward pass.
    """
    import torch

    model = _load(folder).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids = torch.randint(260, model.config.vocab_size, (rows, row), device=model.device)
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        # Logits of one row at a time: those of all rows of a large vocabulary need most memory.
        total = torch.zeros((), device=model.device)
        for states, targets in zip(hidden[:, :-1], ids[:, 1:], strict=True):
            total = total + torch.nn.functional.cross_entropy(
                model.lm_head(states).float(), targets
            )
        total.backward()
        model.zero_grad(set_to_none=True)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return row * rows / seconds


def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if gpu else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to("cuda" if gpu else "cpu").eval()
