"""The formulas equal a NumPy reference and have the properties they promise."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agl_algo_grpo import grpo
from agl_algo_grpo.batches import Row, micro_batches, pad_rows, token_logprobs
from agl_algo_grpo.config import GRPOConfig

_spec = importlib.util.spec_from_file_location(
    "numpy_grpo", Path(__file__).with_name("numpy_grpo.py")
)
assert _spec is not None
assert _spec.loader is not None
reference: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

HOWS = ["group", "group-mean", "rloo"]


@pytest.mark.parametrize("how", HOWS)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0, -1.0, 0.1])),
        min_size=1,
        max_size=24,
    )
)
def test_advantages_equal_the_reference(how: Any, drawn: list[tuple[int, float]]):
    groups, rewards = [g for g, _ in drawn], [r for _, r in drawn]
    mine = grpo.group_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), how
    )
    # With nearly equal rewards both divide a rounding error by an epsilon of 1e-6.
    assert mine.tolist() == pytest.approx(reference.advantages(rewards, groups, how), abs=1e-6)


@pytest.mark.parametrize("how", HOWS)
def test_a_group_of_equal_rewards_has_no_advantages(how: Any):
    advantages = grpo.group_advantages(torch.full((8,), 0.7), torch.zeros(8, dtype=torch.long), how)
    assert advantages.abs().max() == 0


def test_advantages_of_a_known_group():
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 3.0, 5.0]), torch.tensor([0, 0, 0, 1, 1])
    assert grpo.group_advantages(rewards, groups, "group").tolist() == pytest.approx(
        [2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5, -(0.5**0.5), 0.5**0.5], abs=1e-5
    )
    assert grpo.group_advantages(rewards, groups, "rloo").tolist() == [1.0, -0.5, -0.5, -2.0, 2.0]


def test_token_logprobs_equal_the_reference():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 7, 11)).astype(np.float32) * 5
    tokens = rng.integers(0, 11, size=(3, 7))
    for temperature in (1.0, 0.6):
        mine = token_logprobs(torch.tensor(logits), torch.tensor(tokens), temperature)
        for row in range(3):
            theirs = reference.logprobs(logits[row], tokens[row].tolist(), temperature)
            assert mine[row].tolist() == pytest.approx(theirs, abs=5e-6)


def random_rows(seed: int, rollouts: int = 6) -> list[Row]:
    """Return rows like those of trajectories: several per rollout, gaps in the mask."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for rollout in range(rollouts):
        advantage = rng.gauss(0, 1)
        for _ in range(rng.randint(1, 3)):
            length = rng.randint(3, 12)
            mask = [0] + [int(rng.random() < 0.6) for _ in range(length - 2)] + [1]
            rows.append(
                Row(
                    token_ids=torch.tensor([rng.randrange(20) for _ in range(length)]),
                    mask=torch.tensor(mask, dtype=torch.bool),
                    logprobs=torch.tensor([m * -rng.random() * 3 for m in mask]),
                    advantage=advantage,
                    rollout=rollout,
                )
            )
    return rows


@pytest.mark.parametrize("how", ["token", "rollout", "constant"])
@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_of_a_batch_equals_the_reference(how: Any, dual: float | None, seed: int):
    rows, rng = random_rows(seed), random.Random(seed + 100)
    new = [[-rng.random() * 3 for _ in row.token_ids] for row in rows]
    there = [[-rng.random() * 3 for _ in row.token_ids] for row in rows]
    lengths = torch.tensor([int(row.mask.sum()) for row in rows])
    weights = grpo.row_weights(lengths, torch.tensor([row.rollout for row in rows]), how, 50)

    # The sum is the same for micro-batches of every size.
    for most in (1, 40, 10_000):
        total, seen = 0.0, []
        for some in micro_batches(rows, most):
            seen += some
            batch = pad_rows([rows[i] for i in some], weights[some])
            assert batch.token_ids.numel() <= most or len(some) == 1
            now, far = (
                torch.nn.utils.rnn.pad_sequence(
                    [torch.tensor(values[i]) for i in some], batch_first=True
                )
                for values in (new, there)
            )
            losses = grpo.policy_loss(now, batch.old_logprobs, batch.advantages, 0.2, 0.3, dual)
            losses = losses + 0.1 * grpo.kl_to_reference(now, far)
            total += float((losses * batch.weights)[batch.mask].sum())
        assert sorted(seen) == list(range(len(rows)))
        expected = reference.loss(
            [
                (
                    [
                        policy + 0.1 * divergence
                        for policy, divergence in zip(
                            reference.token_losses(
                                new[i], row.logprobs.tolist(), row.advantage, 0.2, 0.3, dual
                            ),
                            reference.kl(new[i], there[i]),
                            strict=True,
                        )
                    ],
                    row.mask.int().tolist(),
                    row.rollout,
                )
                for i, row in enumerate(rows)
            ],
            how,
            50,
        )
        assert total == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_row_weights_add_up_to_one():
    lengths, rollouts = torch.tensor([10, 30, 40]), torch.tensor([0, 0, 1])
    token = grpo.row_weights(lengths, rollouts, "token")
    assert token.tolist() == pytest.approx([1 / 80] * 3)
    rollout = grpo.row_weights(lengths, rollouts, "rollout")
    assert rollout.tolist() == pytest.approx([1 / 80, 1 / 80, 1 / 80])
    uneven = grpo.row_weights(torch.tensor([10, 2]), torch.tensor([7, 3]), "rollout")
    assert uneven.tolist() == pytest.approx([1 / 20, 1 / 4])
    for weights in (token, rollout):
        assert float((weights * lengths).sum()) == pytest.approx(1)
    constant = grpo.row_weights(lengths, rollouts, "constant", 100)
    assert constant.tolist() == pytest.approx([1 / 200] * 3)


def test_clipping_stops_the_gradient_outside_of_the_bounds():
    old = torch.zeros(1, 4)
    new = torch.log(torch.tensor([[1.5, 0.5, 1.5, 0.5]])).requires_grad_()
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    grpo.policy_loss(new, old, advantages).sum().backward()
    # No gradient where a good token is likelier already, or a bad one less likely.
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([0.0, -0.5, 1.5, 0.0])


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1, max_size=20))
def test_kl_is_never_negative_and_zero_for_equal_policies(pairs: list[tuple[float, float]]):
    now, there = (torch.tensor([side], dtype=torch.float64) for side in zip(*pairs, strict=True))
    estimate = grpo.kl_to_reference(now, there)
    assert (estimate >= -1e-12).all()
    assert grpo.kl_to_reference(now, now).abs().max() == 0
    expected = reference.kl(now[0].tolist(), there[0].tolist())
    assert estimate[0].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_kl_estimates_the_divergence():
    torch.manual_seed(0)
    p, q = torch.randn(2, 8, dtype=torch.float64).log_softmax(-1)
    drawn = torch.multinomial(p.exp(), 200_000, replacement=True)
    estimate = grpo.kl_to_reference(p[drawn], q[drawn]).mean()
    exact = (p.exp() * (p - q)).sum()
    assert float(estimate) == pytest.approx(float(exact), rel=0.03)


def test_rows_are_padded_on_the_right_and_masked():
    rows = random_rows(3)[:3]
    batch = pad_rows(rows, torch.tensor([0.1, 0.2, 0.3]))
    for i, row in enumerate(rows):
        size = len(row.token_ids)
        assert batch.token_ids[i, :size].tolist() == row.token_ids.tolist()
        assert batch.attention[i].tolist() == [1] * size + [0] * (batch.token_ids.shape[1] - size)
        assert batch.mask[i, :size].tolist() == row.mask.tolist()
        assert not batch.mask[i, size:].any()
    assert batch.weights[:, 0].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_minibatches_hold_every_rollout_once():
    rows = random_rows(5, rollouts=7)
    config = GRPOConfig(model="m", epochs=2, minibatches=3, tasks_per_step=7, group_size=2)

    def split(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return list(grpo._minibatches(rows, config, generator))

    parts = split(1)
    assert len(parts) == 6
    for epoch in (parts[:3], parts[3:]):
        assert sorted(i for part in epoch for i in part) == list(range(len(rows)))
        for part in epoch:
            mine = {rows[i].rollout for i in part}
            assert all((row.rollout in mine) == (i in part) for i, row in enumerate(rows))
    assert split(1) == parts != split(2)
