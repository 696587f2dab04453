"""Log-probabilities of server and trainer agree in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agl_algo_grpo.batches import Row
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.policy import Policy
from agl_server_hf.engine import Generation, Sampling
from tests.plugins.agl_algo_grpo.gpu.measures import MEAN_BAR, Bars, Work, load, running, sample

pytestmark = pytest.mark.gpu


def test_server_and_trainer_agree(work: Work, model: Path, bars: Bars):
    wanted = [Sampling(max_tokens=work.answer, ignore_eos=True)] * work.sequences
    with running(load(model, work.device), work) as engine:
        rows = [row_of(one, n) for n, one in enumerate(sample(engine, work.prompts(), wanted))]
    config = GRPOConfig(model=model, device=work.device, dtype="bfloat16")
    own = Policy(config, model).evaluate(rows)
    differences = torch.cat(
        [(k.raw - row.logprobs)[row.mask].abs() for row, k in zip(rows, own, strict=True)]
    )
    mean, largest = float(differences.mean()), float(differences.max())
    assert len(differences) == work.sequences * work.answer
    bars.at_most("server and trainer, random weights: mean difference", mean, MEAN_BAR)
    bars.figure("… 99th percentile", f"{float(differences.quantile(0.99)):.4g}")
    bars.figure("… largest", f"{largest:.4g}")
    bars.check()


def row_of(one: Generation, number: int) -> Row:
    prompt = [0.0] * len(one.prompt)
    ids = torch.tensor([*one.prompt, *one.token_ids])
    return Row(
        ids,
        torch.arange(len(ids)) >= len(prompt),
        torch.tensor(prompt + [token.logprob for token in one.tokens]),
        torch.zeros(len(ids)),
        rollout=number,
    )
