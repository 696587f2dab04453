"""The engine of agl-server-hf samples what the model says, and how fast it does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agl_server_hf.engine import Generation, Sampling
from tests.benchmark.bench_sampling import sampler_of_generate
from tests.plugins.agl_algo_grpo.gpu.measures import (
    MEAN_BAR,
    Bars,
    Work,
    chosen,
    load,
    plain_logprobs,
    running,
    said_logprobs,
    sample,
)

pytestmark = pytest.mark.gpu

LARGEST_BAR = 0.1
"""Largest one: bfloat16 has steps of 2^-6 between 2 and 4, where the largest logits of random
weights lie, and several roundings meet in one token."""
SAMPLES = 8192
"""Sampled tokens, so many that a temperature of 0.8 shows in the flat distribution of a tiny model
of random weights."""
ERRORS_BAR = 4.0
"""Standard errors between what the samples say and what the model says; more is one in 16,000."""


def test_the_likeliest_token_is_that_of_a_plain_pass(work: Work, model: Path, bars: Bars):
    wanted = [Sampling(max_tokens=work.answer, temperature=0.0, ignore_eos=True)] * work.sequences
    with running(load(model, work.device), work) as engine:
        sequences = sample(engine, work.prompts(), wanted)
    plain = load(model, work.device)
    behind, differences = [], []
    for one in sequences:
        logprobs = plain_logprobs(plain, one)
        own = chosen(logprobs, one)
        behind.append(logprobs.max(-1).values - own)
        differences.append((said_logprobs(one, work.device) - own).abs())
    gaps, delta = torch.cat(behind), torch.cat(differences)
    # A tie in bfloat16 may fall to another token; its log-probability is almost the same.
    equal = float((gaps == 0).float().mean())
    bars.figure("greedy: tokens equal to a plain pass's", f"{equal:.1%}")
    bars.at_most("greedy: largest gap to its likeliest", float(gaps.max()), LARGEST_BAR)
    bars.at_most("greedy: log-probabilities, mean difference", float(delta.mean()), MEAN_BAR)
    bars.at_most("greedy: log-probabilities, largest", float(delta.max()), LARGEST_BAR)
    bars.check()


def test_samples_follow_the_model_and_repeat_with_their_seeds(work: Work, model: Path, bars: Bars):
    def batch(number: int) -> list[Generation]:
        seeds = range(number * work.sequences, (number + 1) * work.sequences)
        wanted = [Sampling(max_tokens=work.answer, seed=seed, ignore_eos=True) for seed in seeds]
        return sample(engine, work.prompts(), wanted)

    batches = -(-SAMPLES // (work.sequences * work.answer))
    with running(load(model, work.device), work) as engine:
        first, again = batch(0), batch(0)
        sequences = first + [one for number in range(1, batches) for one in batch(number)]
    pairs = [
        (a, b)
        for one, other in zip(first, again, strict=True)
        for a, b in zip(one.token_ids, other.token_ids, strict=True)
    ]
    same = sum(a == b for a, b in pairs) / len(pairs)
    plain = load(model, work.device)
    surprise = expected = variance = 0.0
    differences = []
    for one in sequences:
        logprobs = plain_logprobs(plain, one)
        own = chosen(logprobs, one)
        weights = logprobs.exp()
        entropy = -(weights * logprobs).sum(-1)
        surprise -= float(own.sum())
        expected += float(entropy.sum())
        variance += float(((weights * logprobs.square()).sum(-1) - entropy.square()).sum())
        differences.append((said_logprobs(one, work.device) - own).abs())
    delta = torch.cat(differences)
    bars.at_least("seeded: tokens equal in a second batch", same, 1.0, "{:.1%}")
    # The mean of -log p of samples is the entropy, whatever draws them.
    errors = abs(surprise - expected) / variance**0.5
    bars.at_most("sampled: surprise against entropy, standard errors", errors, ERRORS_BAR)
    bars.at_most("sampled: log-probabilities, mean difference", float(delta.mean()), MEAN_BAR)
    bars.at_most("sampled: log-probabilities, largest", float(delta.max()), LARGEST_BAR)
    bars.check()


def test_the_speed_beside_generate(work: Work, model: Path, bars: Bars):
    """No bar: two programs that share a machine say little in one run, and less on a CPU."""
    wanted = [Sampling(max_tokens=work.answer, ignore_eos=True)] * work.sequences
    prompts = [prompt[: work.prompt - 16] for prompt in work.prompts()]  # `generate` pads others
    with running(load(model, work.device), work) as engine:
        mine = fastest(work, lambda: sample(engine, prompts, wanted))
    generate = sampler_of_generate(load(model, work.device))

    def sampled_by_generate() -> None:
        assert generate(prompts, work.answer) == work.sequences * work.answer

    theirs = fastest(work, sampled_by_generate)
    bars.figure("tokens per second: engine", f"{mine:,.0f}")
    bars.figure("tokens per second: generate of Transformers", f"{theirs:,.0f}")
    bars.figure("engine / generate", f"{mine / theirs:.2f}")
    bars.check()


def fastest(work: Work, do: Any) -> float:
    """Return tokens per second in the faster of two batches; one before them warms up."""
    do()
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        do()
        if work.on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return work.sequences * work.answer / min(seconds)
