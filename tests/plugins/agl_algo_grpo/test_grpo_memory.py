"""Updates that run out of memory, offload states, or round differently than the server."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agl_algo_grpo.batches import Row
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.optimizer import Optimizer
from agl_algo_grpo.policy import Policy
from agl_algo_grpo.update import _add_gradients, update

# Transformers raises this warning when PEFT reads the attribute.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is:FutureWarning")

_spec = importlib.util.spec_from_file_location(
    "tiny_causal", Path(__file__).with_name("tiny_causal.py")
)
assert _spec is not None
assert _spec.loader is not None
tiny: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)


def rows(seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    made: list[Row] = []
    for rollout in range(8):
        length = rng.randint(4, 20)
        mask = torch.tensor([0] + [int(rng.random() < 0.6) for _ in range(length - 2)] + [1]) > 0
        logprobs = torch.tensor([-4.5 + 0.2 * rng.gauss(0, 1) for _ in mask]) * mask
        ids = torch.tensor([rng.randrange(3, 90) for _ in mask])
        made.append(Row(ids, mask, logprobs, torch.full((length,), rng.gauss(0, 1)), rollout // 2))
    return made


def make(folder: Path, name: str = "qwen2", **options: Any) -> tuple[Policy, GRPOConfig]:
    if not (folder / name).exists():
        tiny.make_causal(name, folder / name)
    config = GRPOConfig(model=folder / name, threads=1, **{"learning_rate": 1e-3, **options})
    return Policy(config, folder / name), config


def gradients(policy: Policy) -> list[Tensor]:
    return [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]


def plain_loss(policy: Policy, batch: list[Row], config: GRPOConfig, cap: float | None) -> Tensor:
    """Return the loss by whole logits, row by row.

    Args:
        cap: Bound of the importance weight of the policy's own values; None: the server's
            log-probabilities are the denominators.
    """
    losses: list[list[Tensor]] = []
    half = policy.dtype != torch.float32
    for row in batch:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = policy.model(input_ids=row.token_ids[None]).logits[0, :-1].float()
        now = (logits / config.temperature).log_softmax(-1)
        places = row.mask.nonzero()[:, 0]
        now = now[places - 1, row.token_ids[places]]
        then, weight = row.logprobs[places], torch.ones(len(places))
        if cap is not None or config.temperature != 1:
            if cap is not None:
                weight = (now.detach() - then).exp().clamp(max=cap)
            then = now.detach()
        difference = now - then
        if config.ratio == "sequence":
            difference = difference.detach().mean() + difference - difference.detach()
        ratio, gain = difference.exp(), row.advantages[places] * weight
        bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        found = -torch.minimum(ratio * gain, bounded * gain)
        if config.clip_dual is not None:
            found = torch.where(gain < 0, torch.minimum(found, -config.clip_dual * gain), found)
        losses.append(list(found))
    tokens = [[t for row, of in zip(batch, losses, strict=True) if row.rollout == n for t in of]
              for n in sorted({row.rollout for row in batch})]  # fmt: skip
    if config.loss == "token":
        return torch.stack([t for of in tokens for t in of]).mean()
    if config.loss == "rollout":
        return torch.stack([torch.stack(of).mean() for of in tokens]).mean()
    return torch.stack([t for of in tokens for t in of]).sum() / len(tokens) / config.loss_tokens


@pytest.mark.parametrize("name", ["qwen2", "qwen2-untied", "gemma2"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "rollout", "clip_dual": 1.5},
        {"loss": "constant", "loss_tokens": 30, "temperature": 0.7},
        {"ratio": "sequence", "clip_low": 0.01, "clip_high": 0.02},
        {"overlap": 1, "importance_cap": 1.1},
        {"dtype": "bfloat16", "importance_cap": 1.1},
    ],
)
def test_the_gradients_of_a_step_equal_those_of_the_plain_formula(
    tmp_path: Path, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    policy, config = make(tmp_path, name, chunk_tokens=5, micro_batch_tokens=60, **options)
    half = policy.dtype == torch.bfloat16
    cap = config.importance_cap if half or config.overlap else None
    plain_loss(policy, rows(), config, cap).backward()
    expected = gradients(policy)
    policy.zero_grad()
    found: list[Tensor] = []

    def step() -> float:
        found.extend(gradients(policy))
        return 0.0

    monkeypatch.setattr(policy, "step", step)
    update(policy, rows(), config, 0)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        # bfloat16 has 8 bits, and the sums are in another order.
        near = 0.02 * float(theirs.abs().max()) if half else 0.0
        torch.testing.assert_close(mine, theirs, atol=1e-5 + near, rtol=1e-5)


def test_the_metrics_tell_how_server_and_trainer_differ(tmp_path: Path):
    policy, config = make(tmp_path, epochs=2)
    batch = rows()
    own = policy.evaluate(batch)
    differences = torch.cat(
        [(k.raw - r.logprobs)[r.mask].abs() for r, k in zip(batch, own, strict=True)]
    )
    figures = update(policy, batch, config, 0)
    assert figures["logprob_delta"] == pytest.approx(float(differences.max()), abs=1e-5)
    assert figures["logprob_delta_mean"] == pytest.approx(float(differences.mean()), abs=1e-5)
    below = (differences <= figures["logprob_delta_p99"] + 1e-5).float().mean()
    assert below >= 0.99


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["torch", "cuda", "cublas"],
)
def test_out_of_memory_makes_smaller_passes_of_equal_gradients(
    tmp_path: Path, where: str, error: Exception, caplog: pytest.LogCaptureFixture
):
    plain, config = make(tmp_path)
    _add_gradients(plain, rows(), config)
    other, _ = make(tmp_path)
    tried: list[int] = []

    def fail(tokens: int) -> None:
        tried.append(tokens)
        if tokens > 40:
            raise error

    # The hidden states of the first layer fail: in the backward pass others have gradients by then.
    def hook(_module: Any, _inputs: Any, output: Tensor) -> None:
        tokens = output.shape[0] * output.shape[1]
        if where == "forward":
            fail(tokens)
        else:
            output.register_hook(lambda _grad: fail(tokens))

    other.model.get_input_embeddings().register_forward_hook(hook)
    _add_gradients(other, rows(), config)
    assert max(tried) > 40
    assert other.micro_batches.max_tokens <= 80
    for mine, theirs in zip(gradients(other), gradients(plain), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert sum("out of memory" in text for text in caplog.messages if text) == 1


@pytest.mark.parametrize("allowed", ["auto", False])
def test_a_row_that_does_not_fit_alone_is_computed_with_gradient_checkpointing(
    tmp_path: Path, allowed: Any
):
    plain, config = make(tmp_path)
    _add_gradients(plain, rows(), config)
    other, sparing = make(tmp_path, gradient_checkpointing=allowed)

    def hook(_module: Any, _inputs: Any, _output: Any) -> None:
        if not other.model.is_gradient_checkpointing:
            raise torch.OutOfMemoryError("CUDA out of memory")

    other.model.get_input_embeddings().register_forward_hook(hook)
    if allowed is False:
        with pytest.raises(torch.OutOfMemoryError):
            _add_gradients(other, rows(), sparing)
        return
    _add_gradients(other, rows(), sparing)
    for mine, theirs in zip(gradients(other), gradients(plain), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_other_errors_are_not_taken_for_a_lack_of_memory(tmp_path: Path):
    policy, config = make(tmp_path)

    def hook(*_: Any) -> None:
        raise RuntimeError("shape mismatch")

    policy.model.get_input_embeddings().register_forward_hook(hook)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        _add_gradients(policy, rows(), config)


def test_an_offloaded_optimiser_makes_the_same_steps_and_checkpoints(tmp_path: Path):
    plain, config = make(tmp_path, weight_decay=0.1)
    other, sparing = make(tmp_path, weight_decay=0.1, offload_optimizer=True)
    for step in range(3):
        update(plain, rows(step), config, step)
        update(other, rows(step), sparing, step)
    other.save(tmp_path / "checkpoint", 3)
    third, _ = make(tmp_path, weight_decay=0.1)
    third.restore(tmp_path / "checkpoint")
    update(plain, rows(3), config, 3)
    update(third, rows(3), config, 3)
    for mine, theirs in zip(third.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert {state.device.type for state in other._optimizer.states} == {"cpu"}


def test_rows_pass_the_model_once_where_their_own_values_suffice(tmp_path: Path):
    def passes(**options: Any) -> int:
        policy, config = make(tmp_path, **options)
        count: list[int] = []
        policy.model.get_input_embeddings().register_forward_hook(lambda *_: count.append(1))
        update(policy, rows(), config, 0)
        return len(count)

    assert passes() == 1
    assert passes(overlap=1) == 1
    assert passes(temperature=0.5, epochs=2) == 2
    assert passes(minibatches=2) == 3  # the second would see an updated policy


def test_an_offloaded_optimiser_is_restored_without_its_device():
    """All states together may not fit there; a device that takes none stands for it."""
    saved = {"exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3), "step": torch.tensor(2.0)}
    parameter = torch.nn.Parameter(torch.zeros(3, device="meta"))
    made = Optimizer([parameter], learning_rate=0.1, weight_decay=0.2, offload=True)
    made.load_state_dict({"state": {0: saved}, "param_groups": [{"params": [0]}]})
    assert {value.device.type for value in made.states} == {"cpu"}
    assert made.state_dict()["state"][0].keys() == saved.keys()


@pytest.mark.parametrize("offload", [False, True])
def test_a_resumed_optimiser_has_the_configured_options(offload: bool):
    def make_one(decay: float) -> Optimizer:
        parameter = torch.nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        return Optimizer([parameter], learning_rate=0.1, weight_decay=decay, offload=offload)

    first, second = make_one(0.1), make_one(0.5)
    first.step()
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["param_groups"][0]["weight_decay"] == 0.5
    second.step()
    assert second.state_dict()["state"][0]["step"] == 2
