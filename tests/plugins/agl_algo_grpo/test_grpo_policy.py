"""Training steps of a real model: losses equal a NumPy reference, checkpoints hold all state."""

from __future__ import annotations

import importlib.util
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agl_algo_grpo.batches import Row, forward_passes
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.policy import Policy
from agl_algo_grpo.update import update
from agl_core.errors import ConfigError, LLMServerError

# Transformers raises this warning when PEFT reads the attribute.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning")

_NUMPY = Path(__file__).with_name("numpy_grpo.py")
_spec = importlib.util.spec_from_file_location("numpy_grpo", _NUMPY)
assert _spec is not None
assert _spec.loader is not None
reference: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


def rows(seed: int = 0, noise: float = 0.3) -> list[Row]:
    """Return six rollouts of one or two rows, with log-probabilities of another policy."""
    rng = random.Random(seed)
    made: list[Row] = []
    for rollout in range(6):
        advantage = rng.gauss(0, 1)
        for _ in range(rng.randint(1, 2)):
            length = rng.randint(4, 20)
            mask = [0] + [int(rng.random() < 0.6) for _ in range(length - 2)] + [1]
            logprobs = [m * (-6.4 + noise * rng.gauss(0, 1)) for m in mask]
            made.append(
                Row(
                    torch.tensor([rng.randrange(600) for _ in range(length)]),
                    torch.tensor(mask, dtype=torch.bool),
                    torch.tensor(logprobs),
                    torch.full((length,), advantage),
                    rollout,
                )
            )
    return made


def policy(models: Path, **options: Any) -> tuple[Policy, GRPOConfig]:
    options = {"learning_rate": 1e-3, "threads": 1, **options}
    config = GRPOConfig(model=str(models / "random"), **options)
    return Policy(config, models / "random"), config


def weights(one: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in one.model.named_parameters()}


@pytest.mark.parametrize("how", ["token", "rollout", "constant"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_loss_of_a_step_equals_the_reference(models: Path, how: Any, temperature: float):
    one, config = policy(models, loss=how, kl=0.1, temperature=temperature, clip_high=0.3)
    batch = rows()
    with torch.no_grad():
        logits = [one.model(row.token_ids[None]).logits[0].numpy() for row in batch]
    now = [
        reference.logprobs(logit, row.token_ids.tolist(), temperature)
        for logit, row in zip(logits, batch, strict=True)
    ]
    # At other temperatures the trainer's own values are the old ones, so every ratio is 1.
    old = [row.logprobs.tolist() for row in batch] if temperature == 1 else now
    expected = reference.loss(
        [
            (
                reference.token_losses(new, before, float(row.advantages[0]), 0.2, 0.3, None),
                row.mask.int().tolist(),
                row.rollout,
            )
            for new, before, row in zip(now, old, batch, strict=True)
        ],
        how,
        config.loss_tokens,
    )
    figures = update(one, batch, config, step=0)
    assert figures["loss"] == pytest.approx(expected, abs=1e-6)
    assert figures["kl"] == 0.0  # the starting model is the reference, and this is the first update
    raw = [
        reference.logprobs(g, r.token_ids.tolist(), 1.0) for g, r in zip(logits, batch, strict=True)
    ]
    delta = max(
        abs(now - then)
        for own, row in zip(raw, batch, strict=True)
        for now, then, m in zip(own, row.logprobs.tolist(), row.mask.tolist(), strict=True)
        if m
    )
    assert figures["logprob_delta"] == pytest.approx(delta, abs=1e-5)
    again = update(one, batch, config, step=1)
    assert again["kl"] > 0


@pytest.mark.parametrize(
    "options", [{"micro_batch_tokens": 1}, {"gradient_checkpointing": True}, {"pack": True}]
)
def test_saving_memory_does_not_change_the_weights(models: Path, options: dict[str, Any]):
    plain, config = policy(models)
    other, sparing = policy(models, **options)
    for step in range(2):
        update(plain, rows(step), config, step)
        update(other, rows(step), sparing, step)
    theirs = weights(other)
    for name, mine in weights(plain).items():
        assert torch.allclose(mine, theirs[name], atol=2e-5), name


def test_packed_rows_do_not_see_each_other(models: Path):
    """Each row has the same log-probabilities in a bin of several rows as alone."""
    one, _ = policy(models)
    packed, config = policy(models, pack=True)
    batch = rows()
    bins = next(forward_passes(batch, config.micro_batch_tokens, pack=True))
    assert len(bins) < len(batch)
    for own, alone in zip(packed.evaluate(batch), one.evaluate(batch), strict=True):
        # The first token of a row has no meaning there: nothing predicts it.
        torch.testing.assert_close(own.raw[1:], alone.raw[1:], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(own.entropy[1:], alone.entropy[1:], atol=1e-5, rtol=1e-5)


def test_tokens_of_high_covariance_get_no_gradient(models: Path):
    """Both tokens have the covariance 4: log-probabilities -1 and -5, advantages 2 and -2."""
    mask = torch.tensor([False, False, True])
    batch = [
        Row(torch.tensor([5, 6, 7]), mask, mask * -1.0, mask * 2.0, 0),
        Row(torch.tensor([5, 6, 8]), mask, mask * -5.0, mask * -2.0, 1),
    ]
    one, config = policy(models, clip_cov=1.0)
    before = weights(one)
    assert update(one, batch, config, 0)["grad_norm"] == 0
    assert all(torch.equal(before[name], after) for name, after in weights(one).items())
    other, plain = policy(models)
    assert update(other, batch, plain, 0)["grad_norm"] > 0


def test_tokens_of_older_weights_are_weighted_by_truncated_importance(models: Path):
    """The first update's ratio is 1, so a token's loss is minus its weight times its advantage."""
    one, config = policy(models, overlap=1, importance_cap=1.1)
    batch = [replace(row, staleness=1) for row in rows(noise=0.2)]
    values: list[float] = []
    for own, row in zip(one.evaluate(batch), batch, strict=True):
        for now, then in zip(
            own.raw[row.mask].tolist(), row.logprobs[row.mask].tolist(), strict=True
        ):
            values.append(-min(math.exp(now - then), 1.1) * float(row.advantages[0]))
    figures = update(one, batch, config, step=1)
    assert figures["loss"] == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert figures["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert figures["staleness"] == 1
    assert math.isnan(figures["logprob_delta"])  # there is nothing to compare with


def test_the_sequence_ratio_of_an_update_equals_the_reference(models: Path):
    one, config = policy(models, ratio="sequence", loss="rollout", clip_low=0.02, clip_high=0.03)
    batch = rows(noise=0.05)
    now = [values.raw for values in one.evaluate(batch)]
    losses: list[tuple[list[float], list[int], int]] = []
    for own, row in zip(now, batch, strict=True):
        log_ratio = (own - row.logprobs)[row.mask].tolist()
        ratios = reference.sequence_ratios(log_ratio, [0] * len(log_ratio))
        advantage = float(row.advantages[0])
        values = reference.token_losses(
            [math.log(ratio) for ratio in ratios], [0.0] * len(ratios), advantage, 0.02, 0.03, None
        )
        losses.append((values, [1] * len(values), row.rollout))
    expected = reference.loss(losses, "rollout", 1)
    figures = update(one, batch, config, step=0)
    assert figures["loss"] == pytest.approx(expected, abs=1e-6)
    assert 0 < figures["clipped"] < 1


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}])
def test_training_resumes_from_a_checkpoint_bit_by_bit(models: Path, tmp_path: Path, lora: Any):
    first, config = policy(models, lora=lora, warmup_steps=5, epochs=2, minibatches=2)
    for step in range(2):
        update(first, rows(step), config, step)
    first.save(tmp_path / "checkpoint", 2)
    drawn = torch.rand(3)
    update(first, rows(2), config, 2)

    second, _ = policy(models, lora=lora, warmup_steps=5, epochs=2, minibatches=2)
    assert second.restore(tmp_path / "checkpoint") == 2
    assert torch.equal(torch.rand(3), drawn)  # the random generator's state is restored
    update(second, rows(2), config, 2)
    theirs = weights(second)
    assert all(torch.equal(mine, theirs[name]) for name, mine in weights(first).items())
    fresh = weights(policy(models, lora=lora)[0])
    assert any(not torch.equal(theirs[name], fresh[name]) for name in fresh)
    # No partial folder is left.
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_checkpoints_of_another_model_are_refused(models: Path, tmp_path: Path):
    one, _ = policy(models)
    one.save(tmp_path / "full", 1)
    adapted, _ = policy(models, lora={"r": 4})
    with pytest.raises(ConfigError, match="another model"):
        adapted.restore(tmp_path / "full")
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        one.restore(tmp_path)
    with pytest.raises(LLMServerError, match=r"config\.json"):
        Policy(GRPOConfig(model="m"), tmp_path)


def test_gradients_that_are_not_finite_are_not_applied_and_end_a_run_if_they_stay(models: Path):
    one, config = policy(models)
    before = weights(one)
    good = rows()
    bad = [replace(good[0], advantages=torch.full_like(good[0].logprobs, math.nan)), *good[1:]]
    for step in range(4):
        figures = update(one, bad, config, step)
        assert figures["refused_updates"] == 1
        assert math.isnan(figures["grad_norm"])
    after = weights(one)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    figures = update(one, good, config, 4)
    assert figures["refused_updates"] == 0
    for step in range(4):
        update(one, bad, config, step)
    with pytest.raises(FloatingPointError, match="in 5 updates in a row; lower the learning rate"):
        update(one, bad, config, 4)


def test_an_update_that_is_not_applied_leaves_the_figures_of_the_others(models: Path):
    one, config = policy(models, minibatches=3)
    batch = rows()
    nan = [r.advantages * math.nan if r.rollout == 2 else r.advantages for r in batch]
    batch = [replace(row, advantages=one) for row, one in zip(batch, nan, strict=True)]
    figures = update(one, batch, config, 0)
    assert figures["refused_updates"] == 1
    assert all(math.isfinite(figures[name]) for name in ("loss", "kl", "grad_norm"))


def test_figures_are_means_of_the_updates_that_were_made(models: Path):
    few, most = policy(models, minibatches=8), policy(models, minibatches=6)  # of six rollouts
    found, expected = (update(one, rows(), config, 0) for one, config in (few, most))
    for name in ("loss", "kl", "grad_norm"):
        assert found[name] == expected[name]


@pytest.mark.parametrize(
    ("shift", "advantage", "dual", "share"),
    [
        (-1.0, 1.0, None, 1.0),  # far likelier than when it was sampled, and to become likelier
        (-1.0, -1.0, None, 0.0),
        (1.0, -1.0, None, 1.0),
        (1.0, 1.0, None, 0.0),
        (-2.0, -1.0, 3.0, 1.0),
        (-1.0, -1.0, 3.0, 0.0),  # a ratio of 2.7
    ],
)
def test_clipped_tokens_are_those_without_a_gradient(
    models: Path, shift: float, advantage: float, dual: float | None, share: float
):
    one, config = policy(models, clip_dual=dual)
    batch = rows()
    now = one.evaluate(batch)
    batch = [
        replace(
            row,
            logprobs=(values.raw + shift) * row.mask,
            advantages=torch.full_like(row.logprobs, advantage),
        )
        for row, values in zip(batch, now, strict=True)
    ]
    figures = update(one, batch, config, 0)
    assert figures["clipped"] == share
    assert (figures["grad_norm"] == 0) == bool(share)


def test_an_update_follows_the_sign_of_the_advantage(models: Path):
    """A token with a positive advantage becomes likelier; with a negative one, less likely."""
    one, config = policy(models, learning_rate=1e-4, epochs=3)
    batch = [
        Row(
            torch.tensor([5, 6, token]),
            torch.tensor([False, False, True]),
            torch.zeros(3),
            torch.full((3,), advantage),
            number,
        )
        for number, (token, advantage) in enumerate([(10, 1.0), (20, -1.0)])
    ]
    known = [values.raw for values in one.evaluate(batch)]
    batch = [
        replace(row, logprobs=before * row.mask) for row, before in zip(batch, known, strict=True)
    ]
    figures = update(one, batch, config, 0)
    assert figures["logprob_delta"] == 0
    after = [values.raw for values in one.evaluate(batch)]
    assert after[0][2] > known[0][2]
    assert after[1][2] < known[1][2]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_models_have_the_form_of_their_base(
    models: Path, tmp_path: Path, tied: bool, dtype: Any
):
    """The same tensors, so that a tied model has no second head, and their type in the config."""
    config = AutoConfig.from_pretrained(models / "random")
    config.tie_word_embeddings = tied
    base, out = tmp_path / "base", tmp_path / "out"
    AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype)).save_pretrained(base)
    AutoTokenizer.from_pretrained(models / "random").save_pretrained(base)
    Policy(GRPOConfig(model=base, dtype=dtype), base).export(out)

    def form(folder: Path) -> Any:
        with safe_open(folder / "model.safetensors", "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tensors = {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()}
        return json.loads((folder / "config.json").read_text())["dtype"], tensors

    assert form(out) == form(base)
    reloaded = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    original = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    for name, tensor in original.state_dict().items():
        assert torch.equal(tensor, reloaded.state_dict()[name])
