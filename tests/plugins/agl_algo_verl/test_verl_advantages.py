"""Our advantages and losses, and verl's, equal a NumPy reference to 1e-6."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and what it imports

reference = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("numpy_reference.py"))))

T = 9
PLACES = (("a", 0, 0), ("a", 0, 1), ("a", 0, 2), ("a", 1, 0), ("a", 2, 0), ("a", 2, 1), ("a", 3, 0))
PLACES += (
    ("b", 0, 0),
    ("b", 1, 0),
    ("b", 1, 1),
    ("b", 2, 0),
    ("b", 3, 0),
    ("c", 0, 0),
    ("c", 0, 1),
)
"""Group, rollout and row: rollouts of one to three rows; group c has a single rollout."""
KEYS = [f"{group}_{session}_{index}" for group, session, index in PLACES]
ROLLOUTS = [key.rsplit("_", 1)[0] for key in KEYS]
GROUPS = [key.split("_")[0] for key in KEYS]
B = len(KEYS)


@pytest.fixture(scope="module")
def verl_parts() -> Any:
    from verl import DataProto
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig

    from agl_algo_verl import advantages

    return SimpleNamespace(
        DataProto=DataProto, core=core_algos, ActorConfig=ActorConfig, ours=advantages
    )


@pytest.fixture
def numbers() -> Any:
    """Return rewards per rollout, masks with gaps, log-probabilities and values, in float64."""
    rng = np.random.default_rng(5)
    rewards = {name: float(rng.normal()) for name in dict.fromkeys(ROLLOUTS)}
    mask = np.zeros((B, T))
    for row in range(B):
        length = int(rng.integers(2, T + 1))
        mask[row, :length] = rng.random(length) < 0.7
        mask[row, 0] = mask[row, length - 1] = 1
    scores = np.zeros((B, T))
    for row, name in enumerate(ROLLOUTS):
        scores[row, np.flatnonzero(mask[row])[-1]] = rewards[name]
    old = rng.normal(-2.0, 0.5, (B, T))
    return SimpleNamespace(
        rewards=rewards,
        mask=mask,
        scores=scores,
        old=old,
        new=old + rng.normal(0.0, 0.6, (B, T)),
        values=rng.normal(size=(B, T)),
        advantages=rng.normal(size=(B, T)),
    )


def tensor(array: Any) -> Any:
    import torch

    return torch.tensor(array, dtype=torch.float64)


def advantages_of(parts: Any, numbers: Any, level: str, estimator: str, **more: Any) -> Any:
    tensors = {
        "token_level_rewards": tensor(numbers.scores),
        "response_mask": tensor(numbers.mask),
        "values": tensor(numbers.values),
    }
    data = parts.DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(GROUPS, object)})
    options = {"norm_by_std": True, "gamma": 1.0, "lam": 1.0, "num_repeat": 4, **more}
    found = parts.ours.add_advantages(
        data, KEYS, level=level, estimator=estimator, config={}, **options
    )
    return found.batch["advantages"].numpy(), found.batch["returns"].numpy()


def over_rows(per_row: Any, numbers: Any) -> Any:
    return np.asarray(per_row)[:, None] * numbers.mask


def by_rollout(numbers: Any, estimate: Any) -> Any:
    """Return advantages of rollouts, copied to each row."""
    names = list(dict.fromkeys(ROLLOUTS))
    groups = [name.split("_")[0] for name in names]
    found = dict(zip(names, estimate([numbers.rewards[n] for n in names], groups), strict=True))
    return over_rows([found[name] for name in ROLLOUTS], numbers)


class TestAdvantages:
    @pytest.mark.parametrize("by_std", [True, False])
    def test_grpo_by_rollout(self, verl_parts: Any, numbers: Any, by_std: bool):
        found, returns = advantages_of(verl_parts, numbers, "rollout", "grpo", norm_by_std=by_std)
        wanted = by_rollout(numbers, lambda r, g: reference.grpo(r, g, by_std=by_std))
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)
        np.testing.assert_allclose(returns, wanted, atol=1e-6, rtol=0)
        assert np.abs(wanted).max() > 0.5

    @pytest.mark.parametrize("by_std", [True, False])
    def test_grpo_by_row(self, verl_parts: Any, numbers: Any, by_std: bool):
        found, _ = advantages_of(verl_parts, numbers, "row", "grpo", norm_by_std=by_std)
        rewards = [numbers.rewards[name] for name in ROLLOUTS]
        wanted = over_rows(reference.grpo(rewards, GROUPS, by_std=by_std), numbers)
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)

    def test_rloo_by_rollout(self, verl_parts: Any, numbers: Any):
        found, _ = advantages_of(verl_parts, numbers, "rollout", "rloo")
        wanted = by_rollout(numbers, reference.rloo)
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)

    def test_rollouts_of_many_rows_do_not_move_the_mean(self, verl_parts: Any, numbers: Any):
        numbers.rewards.update({"a_0": 1.0, "a_1": 0.0, "a_2": 0.0, "a_3": 0.0})
        for row, name in enumerate(ROLLOUTS):
            numbers.scores[row, np.flatnonzero(numbers.mask[row])[-1]] = numbers.rewards[name]
        found, _ = advantages_of(verl_parts, numbers, "rollout", "grpo", norm_by_std=False)
        assert found[0, 0] == pytest.approx(0.75, abs=1e-6)
        found, _ = advantages_of(verl_parts, numbers, "row", "grpo", norm_by_std=False)
        assert found[0, 0] == pytest.approx(4 / 7, abs=1e-6)

    @pytest.mark.parametrize("level", ["rollout", "row"])
    def test_a_rollout_without_siblings_teaches_nothing(
        self, verl_parts: Any, numbers: Any, level: str
    ):
        numbers.rewards["c_0"] = 1.0
        found, _ = advantages_of(verl_parts, numbers, level, "grpo")
        lone = [row for row, group in enumerate(GROUPS) if group == "c"]
        if level == "rollout":
            assert not found[lone].any()
        else:
            np.testing.assert_allclose(found[lone], 0.0, atol=1e-6)  # two equal rows
        assert found[0].any()

    @pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.97, 0.9)])
    @pytest.mark.parametrize("level", ["rollout", "row"])
    def test_gae(self, verl_parts: Any, numbers: Any, gamma: float, lam: float, level: str):
        found, returns = advantages_of(verl_parts, numbers, level, "gae", gamma=gamma, lam=lam)
        raw = reference.gae(numbers.scores, numbers.values, numbers.mask, gamma, lam)
        sampled = numbers.mask > 0
        wanted = reference.whiten(raw, numbers.mask)
        np.testing.assert_allclose(found[sampled], wanted[sampled], atol=1e-6, rtol=0)
        np.testing.assert_allclose(
            returns[sampled], (raw + numbers.values)[sampled], atol=1e-6, rtol=0
        )


@pytest.fixture
def actor_config(verl_parts: Any) -> Any:
    return verl_parts.ActorConfig(
        strategy="fsdp2",
        ppo_mini_batch_size=8,
        ppo_micro_batch_size_per_gpu=8,
        rollout_n=4,
        use_dynamic_bsz=False,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
    )


class TestLosses:
    def losses(self, numbers: Any) -> Any:
        return reference.ppo_token_losses(
            numbers.old, numbers.new, numbers.advantages, low=0.2, high=0.28, dual=3.0
        )

    def loss(self, parts: Any, numbers: Any, config: Any, weights: Any = None) -> Any:
        new = tensor(numbers.new).requires_grad_()
        loss, _ = parts.core.get_policy_loss_fn("vanilla")(
            old_log_prob=tensor(numbers.old),
            log_prob=new,
            advantages=tensor(numbers.advantages),
            response_mask=tensor(numbers.mask),
            loss_agg_mode="token-mean",
            config=config,
            rollout_is_weights=weights,
        )
        loss.backward()
        return loss.item(), new.grad.numpy()

    def test_clipped_surrogate(self, verl_parts: Any, numbers: Any, actor_config: Any):
        found, gradient = self.loss(verl_parts, numbers, actor_config)
        wanted = reference.mean_over_tokens(self.losses(numbers), numbers.mask)
        assert found == pytest.approx(wanted, abs=1e-6)
        assert gradient[numbers.mask == 0].any() == np.False_

    def test_per_rollout(self, verl_parts: Any, numbers: Any, actor_config: Any):
        """verl's token mean with our weights equals the mean over rollouts, with its gradient."""
        weights = verl_parts.ours.rollout_token_weights(tensor(numbers.mask), KEYS)
        found, gradient = self.loss(verl_parts, numbers, actor_config, weights.double())
        losses = self.losses(numbers)
        wanted = reference.mean_over_rollouts(losses, numbers.mask, ROLLOUTS)
        assert found == pytest.approx(wanted, abs=1e-6)
        assert abs(wanted - reference.mean_over_tokens(losses, numbers.mask)) > 1e-3
        step = 1e-6
        for row, token in [(0, 0), (4, 0), (12, 0)]:
            moved = numbers.new.copy()
            moved[row, token] += step
            changed = reference.mean_over_rollouts(
                reference.ppo_token_losses(
                    numbers.old, moved, numbers.advantages, low=0.2, high=0.28, dual=3.0
                ),
                numbers.mask,
                ROLLOUTS,
            )
            assert gradient[row, token] == pytest.approx((changed - wanted) / step, abs=1e-4)

    def test_weights_leave_the_mean_weight_of_a_token_at_one(self, verl_parts: Any, numbers: Any):
        weights = verl_parts.ours.rollout_token_weights(tensor(numbers.mask), KEYS).numpy()
        assert weights[numbers.mask > 0].mean() == pytest.approx(1.0, abs=1e-6)
        assert not weights[numbers.mask == 0].any()

    def test_padding_has_no_weight(self, verl_parts: Any, numbers: Any):
        """A row without sampled tokens, which verl adds as padding, does not count as a rollout."""
        mask = np.vstack([numbers.mask, np.zeros((1, T))])
        weights = verl_parts.ours.rollout_token_weights(tensor(mask), [*KEYS, "pad1_0_0"])
        same = verl_parts.ours.rollout_token_weights(tensor(numbers.mask), KEYS)
        np.testing.assert_allclose(weights[:-1], same, atol=1e-6)
        assert not weights[-1].any()

    @pytest.mark.parametrize("name", ["k1", "k2", "k3"])
    def test_kl_estimates(self, verl_parts: Any, numbers: Any, name: str):
        found = verl_parts.core.kl_penalty(tensor(numbers.new), tensor(numbers.old), name).numpy()
        wanted = reference.kl_estimates(numbers.new, numbers.old)[name]
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)
