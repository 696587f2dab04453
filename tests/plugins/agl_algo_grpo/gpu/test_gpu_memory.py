"""Memory of the engine and of an update: what they promise, and constant over many steps."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agl_algo_grpo.batches import Row
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.head import Head
from agl_algo_grpo.policy import Policy
from agl_algo_grpo.update import update
from agl_server_hf import load_model
from agl_server_hf.engine import PROMPT_TOKENS, Sampling
from tests.plugins.agl_algo_grpo.gpu.measures import (
    Bars,
    Peak,
    Work,
    in_its_thread,
    load,
    peak_bytes,
    running,
    sample,
)

pytestmark = pytest.mark.gpu

BATCHES = 6
"""Batches after the first; on a GPU about 800 steps of the engine."""
SAME = 1.01
"""Largest ratio of two equal amounts: small tensors come and go."""
LOGITS, ACTIVATIONS = 6, 6
"""Working memory of an engine's step: so many arrays of a batch's logits in float32 (what the model
returns in two types, log-probabilities, weights, noise), and so many of the hidden states of its
tokens with the inner ones. On a CPU a step needs about 5 of the one or 3.5 of the other."""
CHUNKS_BAR = 1.5
"""Memory that the loss adds, in logits of a chunk of tokens; agl-algo-grpo's README promises it."""


def test_the_engine_keeps_to_its_cache(work: Work, model: Path, bars: Bars):
    before = held_bytes(work)
    served = load(model, work.device)
    weights = held_bytes(work) - before
    with torch.no_grad():  # the first product makes cuBLAS allocate its workspace
        served(input_ids=torch.arange(64, device=work.device)[None], use_cache=False)
    loaded = held_bytes(work)
    wanted = [Sampling(max_tokens=work.answer, ignore_eos=True)] * work.sequences
    with running(served, work) as engine:
        cache = held_bytes(work) - loaded
        sample(engine, work.prompts(), wanted)
        held: list[int] = []
        peaks: list[int] = []
        for number in range(BATCHES):
            peak = Peak(work.device)
            in_its_thread(engine, peak.start)
            sample(engine, work.prompts(seed=number), wanted)
            in_its_thread(engine, peak.stop)
            peaks.append(peak.bytes)
            held.append(held_bytes(work) - before)
        tokens = engine.cache_tokens
    config = served.config
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    logits = work.sequences * config.vocab_size * 4
    step = min(PROMPT_TOKENS, work.sequences * work.prompt) + work.sequences
    states = step * (config.hidden_size + config.intermediate_size) * 2
    budget = LOGITS * logits + ACTIVATIONS * states
    bars.figure("engine: weights, cache", f"{mib(weights)}, {mib(cache)}")
    bars.at_most("engine: cache / keys and values of its tokens", cache / (tokens * token), SAME)
    bars.at_most(f"engine: held after {BATCHES} batches / after 1", held[-1] / held[0], SAME)
    bars.at_most("engine: peak of a batch, largest / smallest", max(peaks) / min(peaks), SAME)
    bars.figure("engine: peak of a batch", f"{mib(max(peaks))} of {mib(budget)}")
    bars.at_most("engine: peak of a batch / its budget", max(peaks) / budget, 1.0)
    bars.check()


def test_an_update_needs_the_same_for_any_number_of_rows(work: Work, model: Path, bars: Bars):
    config = GRPOConfig(
        model=model,
        device=work.device,
        dtype="bfloat16",
        micro_batch_tokens=4 * work.length,
        learning_rate=1e-4,
    )
    policy = Policy(config, model)
    few, many = make_rows(work, 8), make_rows(work, 32)
    update(policy, few, config, 0)  # the optimiser's states stay from now on
    peaks = [
        peak_bytes(work.device, partial(update, policy, rows, config, step))
        for step, rows in enumerate([few, many, few, many], start=1)
    ]
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    bars.figure("update: peak beyond weights and optimiser", mib(max(peaks)))
    bars.figure("update: the same, bytes per parameter", f"{max(peaks) / parameters:.1f}")
    bars.at_most("update: peak with 32 rows / with 8", max(peaks) / min(peaks), SAME)
    bars.check()


def test_the_loss_adds_one_and_a_half_chunks(work: Work, model: Path, bars: Bars):
    loaded = load_model(model, dtype=torch.float32, device=work.device)
    head = Head(loaded, torch.bfloat16)
    words = loaded.config.vocab_size
    chunk, tokens = work.prompt * 4, work.prompt * 16
    ids = torch.randint(260, words, (1, tokens), device=work.device)
    sources, targets = torch.arange(tokens - 1, device=work.device), ids[0, 1:]
    for parameter in loaded.parameters():
        parameter.grad = torch.zeros_like(parameter)  # as after the first micro-batch
    states = torch.randn(tokens, loaded.config.hidden_size, device=work.device)

    def hidden() -> Tensor:
        return states.detach().requires_grad_()

    def loss() -> None:
        values = head.values(hidden(), sources, targets, chunk_tokens=chunk)
        (values.logprobs / tokens).sum().backward()

    def dummy() -> None:
        hidden().square().mean().backward()

    for warm_up in (loss, dummy):  # libraries allocate at their first use
        warm_up()
    added = peak_bytes(work.device, loss) - peak_bytes(work.device, dummy)
    bars.at_most("update: loss adds, logits of a chunk", added / (chunk * words * 4), CHUNKS_BAR)
    bars.check()


def make_rows(work: Work, count: int) -> list[Row]:
    """Return rows of equal length, of random tokens and advantages, two to a rollout."""
    generator = torch.Generator().manual_seed(count)
    sampled = torch.arange(work.length) >= work.prompt
    return [
        Row(
            torch.randint(260, 2000, (work.length,), generator=generator),
            sampled,
            torch.full((work.length,), -7.0) * sampled,
            torch.randn(1, generator=generator).expand(work.length),
            rollout=number // 2,
        )
        for number in range(count)
    ]


def held_bytes(work: Work) -> int:
    """Return the bytes of all tensors that are alive on the device."""
    gc.collect()
    if work.on_gpu:
        return torch.cuda.memory_allocated()
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def mib(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"
