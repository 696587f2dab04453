"""The formulas equal a NumPy reference and have the properties they promise."""

from __future__ import annotations

import importlib.util
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from agl_algo_grpo import grpo, update
from agl_algo_grpo.batches import Batch, Row, collate, forward_passes
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
                    advantages=torch.full((length,), advantage),
                    rollout=rollout,
                )
            )
    return rows


def loss_of(
    batch: Batch, new: list[list[float]], reference: list[list[float]], dual: float | None
) -> float:
    """Return the loss of a batch whose rows have the log-probabilities ``new``."""
    positions = torch.cat([mask.nonzero()[:, 0] for mask in batch.masks.values()])
    places = list(zip(batch.rows.tolist(), positions.tolist(), strict=True))
    now = torch.tensor([new[row][position] for row, position in places])
    there = torch.tensor([reference[row][position] for row, position in places])
    log_ratio = now - batch.old_logprobs
    losses = grpo.policy_loss(log_ratio, batch.advantages, 0.2, 0.3, dual)
    losses = losses + 0.1 * grpo.kl_to_reference(now, there)
    return float((losses * batch.weights).sum())


@pytest.mark.parametrize("how", ["token", "rollout", "constant"])
@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_of_a_batch_equals_the_reference(how: Any, dual: float | None, seed: int):
    rows, rng = random_rows(seed), random.Random(seed + 100)
    new = [[-rng.random() * 3 for _ in row.token_ids] for row in rows]
    there = [[-rng.random() * 3 for _ in row.token_ids] for row in rows]
    lengths = torch.tensor([int(row.mask.sum()) for row in rows])
    weights = grpo.row_weights(lengths, torch.tensor([row.rollout for row in rows]), how, 50)

    # The sum is the same for forward passes of every size, packed or not.
    for most, pack in itertools.product((1, 40, 10_000), (False, True)):
        total, seen = 0.0, []
        for bins in forward_passes(rows, most, pack=pack):
            seen += itertools.chain(*bins)
            batch = collate(rows, bins, weights)
            assert batch.token_ids.numel() <= most or len(bins) == 1
            total += loss_of(batch, new, there, dual)
        assert sorted(seen) == list(range(len(rows)))
        expected = reference.loss(
            [
                (
                    [
                        policy + 0.1 * divergence
                        for policy, divergence in zip(
                            reference.token_losses(
                                new[i],
                                row.logprobs.tolist(),
                                float(row.advantages[0]),
                                0.2,
                                0.3,
                                dual,
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
    grpo.policy_loss(new - old, advantages).sum().backward()
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
    batch = collate(rows, [[0], [1], [2]], torch.tensor([0.1, 0.2, 0.3]))
    attention = batch.inputs["attention_mask"]
    for i, row in enumerate(rows):
        size = len(row.token_ids)
        assert batch.token_ids[i, :size].tolist() == row.token_ids.tolist()
        assert attention[i].tolist() == [1] * size + [0] * (batch.token_ids.shape[1] - size)
        mine = batch.rows == i
        assert batch.targets[mine].tolist() == row.token_ids[row.mask].tolist()
        assert batch.weights[mine].tolist() == pytest.approx([(i + 1) / 10] * int(mine.sum()))
        # The token before each sampled one predicts it.
        before = batch.token_ids.flatten()[batch.sources[mine]]
        assert before.tolist() == row.token_ids[:-1][row.mask[1:]].tolist()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 200))
def test_packing_keeps_each_row_whole_and_fills_no_bin_beyond_the_longest_row(
    sizes: list[int], most: int
):
    rows = [row_of(size, number) for number, size in enumerate(sizes)]
    passes = list(forward_passes(rows, most, pack=True))
    bins = list(itertools.chain(*passes))
    assert sorted(itertools.chain(*bins)) == list(range(len(rows)))
    assert all(sum(sizes[i] for i in members) <= max(sizes) for members in bins)
    # First fit leaves at most one bin half empty.
    assert sum(2 * sum(sizes[i] for i in members) < max(sizes) for members in bins) <= 1
    for bins in passes:
        batch = collate(rows, bins)
        targets = batch.split(batch.targets)
        positions = batch.split(batch.positions.flatten()[batch.sources] + 1)
        for i in itertools.chain(*bins):  # nothing predicts a row's first token
            assert targets[i][1:].tolist() == rows[i].token_ids[1:].tolist()
            assert positions[i].tolist() == list(range(sizes[i]))


def row_of(size: int, number: int) -> Row:
    mask = torch.ones(size, dtype=torch.bool)
    return Row(torch.full((size,), number), mask, torch.zeros(size), torch.zeros(size), number)


@pytest.mark.parametrize("seed", range(3))
def test_the_sequence_ratio_equals_the_reference(seed: int):
    rng = random.Random(seed)
    rows = [rng.randrange(4) for _ in range(20)]
    log_ratio = [rng.gauss(0, 0.1) for _ in rows]
    ratio = grpo.sequence_log_ratio(torch.tensor(log_ratio), torch.tensor(rows)).exp()
    assert ratio.tolist() == pytest.approx(reference.sequence_ratios(log_ratio, rows), rel=1e-6)


def test_the_sequence_ratio_of_a_known_row_and_its_gradient():
    """Worked out by hand: ratios 2 and 8 have the geometric mean 4, 1 and 1 have 1.

    With advantage 1 the loss of a token of the first row is -4, and its gradient -4: the ratio
    times the derivative of the token's log-probability.
    """
    log_ratio = torch.log(torch.tensor([2.0, 1.0, 8.0, 1.0])).requires_grad_()
    ratios = grpo.sequence_log_ratio(log_ratio, torch.tensor([0, 1, 0, 1]))
    assert ratios.exp().tolist() == pytest.approx([4, 1, 4, 1])
    losses = grpo.policy_loss(ratios, torch.ones(4), clip_high=9)
    losses.sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([-4, -1, -4, -1])


def test_the_sequence_ratio_clips_whole_rows():
    log_ratio = torch.log(torch.tensor([1.1, 1.9, 0.9, 1.0])).requires_grad_()
    ratios = grpo.sequence_log_ratio(log_ratio, torch.tensor([0, 0, 1, 1]))
    grpo.policy_loss(ratios, torch.ones(4), 0.2, 0.2).sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad[:2].tolist() == [0.0, 0.0]  # sqrt(1.1 * 1.9) = 1.45 is above 1.2
    assert log_ratio.grad[2:].tolist() == pytest.approx([-(0.9**0.5)] * 2)


def test_truncated_importance_of_known_tokens():
    now, then = torch.tensor([0.5, 0.1, 0.9]).log(), torch.tensor([0.25, 0.2, 0.1]).log()
    assert grpo.truncated_importance(now, then, 5.0).tolist() == pytest.approx([2.0, 0.5, 5.0])


def test_high_covariance_of_known_tokens():
    """Worked out by hand: means are -2 and 0, so the covariances are 3, -1, 1 and 9."""
    logprobs, advantages = torch.tensor([-1.0, -1.0, -1.0, -5.0]), torch.tensor([3.0, -1, 1, -3])
    expected = [3.0, -1.0, 1.0, 9.0]
    assert reference.covariances(logprobs.tolist(), advantages.tolist()) == expected

    def choose(share: float, **bounds: float) -> list[bool]:
        generator = torch.Generator().manual_seed(0)
        return grpo.high_covariance(logprobs, advantages, share, generator, **bounds).tolist()

    assert choose(1.0) == [True, False, True, False]  # between 1 and 5
    assert choose(1.0, high=10) == [True, False, True, True]
    assert sum(choose(0.25)) == 1
    assert sum(choose(0.2)) == 0  # less than one token


@given(
    st.lists(st.tuples(st.floats(-9, 0), st.floats(-3, 3)), min_size=1, max_size=50),
    st.floats(0, 1),
)
def test_high_covariance_equals_the_reference(pairs: list[tuple[float, float]], share: float):
    logprobs, advantages = (list(side) for side in zip(*pairs, strict=True))
    chosen = grpo.high_covariance(
        torch.tensor(logprobs, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        share,
        torch.Generator().manual_seed(1),
    ).tolist()
    covariances = reference.covariances(logprobs, advantages)
    assert all(
        1 - 1e-9 <= c <= 5 + 1e-9 for c, taken in zip(covariances, chosen, strict=True) if taken
    )
    candidates = sum(1 + 1e-9 < c < 5 - 1e-9 for c in covariances)
    assert sum(chosen) >= min(int(share * len(pairs)), candidates)
    assert sum(chosen) <= int(share * len(pairs))


def test_minibatches_hold_every_rollout_once():
    rows = random_rows(5, rollouts=7)
    config = GRPOConfig(model="m", epochs=2, minibatches=3, tasks_per_step=7, group_size=2)

    def split(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return list(update._minibatches(rows, config, generator))

    parts = split(1)
    assert len(parts) == 6
    for epoch in (parts[:3], parts[3:]):
        assert sorted(i for part in epoch for i in part) == list(range(len(rows)))
        for part in epoch:
            mine = {rows[i].rollout for i in part}
            assert all((row.rollout in mine) == (i in part) for i, row in enumerate(rows))
    assert split(1) == parts != split(2)
