r"""Group relative policy optimisation, from rewards and tokens to a step of the optimiser.

Read top to bottom: five formulas, then :func:`update`, which puts them together. Everything else of
this package gets rollouts here (`algorithm.py`, `samples.py`) or weights away (`policy.py`).

For each task the policy makes a group of G rollouts with rewards r. A rollout's advantage is how
much better it did than its group (Shao et al., "DeepSeekMath", 2024, https://arxiv.org/abs/2402.03300):

.. math:: A_i = (r_i - mean(r)) / std(r)

Every token that the policy sampled in rollout i is made likelier if A_i > 0 and less likely if
A_i < 0, as far as the clipped ratio goes (Schulman et al., "Proximal Policy Optimization", 2017):

.. math:: L = -\sum_t w_t \min(\rho_t A, clip(\rho_t, 1 - low, 1 + high) A) + \beta KL_t

where :math:`\rho_t` is the token's probability now over the one it was sampled with, and the
weights w add up to one. What the model did not sample (prompts, tool results) is masked.

Shapes: R rollouts; N rows, at least one per rollout (an agent's trajectory may break into several);
T tokens, padded on the right; V words in the vocabulary. All floats are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from agl_algo_grpo.config import GRPOConfig
    from agl_algo_grpo.policy import Policy

__all__ = [
    "Batch",
    "Row",
    "group_advantages",
    "kl_to_reference",
    "micro_batches",
    "pad_rows",
    "policy_loss",
    "row_weights",
    "token_logprobs",
    "update",
]

# -- formulas --------------------------------------------------------------------------------------


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    how: Literal["group", "group-mean", "rloo"] = "group",
    epsilon: float = 1e-6,
) -> Tensor:
    """Return how much better each rollout did than its group.

    A group whose rewards are all equal says nothing: its advantages are 0.

    Args:
        rewards: float ``[R]``.
        groups: int ``[R]``, the number of each rollout's group.
        how: ``group``: ``(r - mean) / (std + epsilon)`` with the sample's standard deviation
            (n - 1). ``group-mean``: ``r - mean``, which does not favour tasks that are nearly
            always or nearly never solved (Liu et al., "Dr. GRPO", 2025). ``rloo``: ``r`` minus the
            mean of the others (Ahmadian et al., "Back to Basics", 2024).
        epsilon: Keeps the division finite.

    Returns:
        float ``[R]``.
    """
    advantages = torch.zeros_like(rewards)
    for group in groups.unique():
        members = groups == group
        r = rewards[members].double()
        n = len(r)
        if bool((r == r[0]).all()):
            continue  # what rounding leaves of them would be divided by epsilon
        centred = r - r.mean()
        if how == "group":
            centred = centred / (r.std(correction=1) + epsilon)
        elif how == "rloo":
            centred = centred * n / (n - 1)  # = r - (sum(r) - r) / (n - 1)
        advantages[members] = centred.to(rewards.dtype)
    return advantages


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probability of each token, given those before it.

    Args:
        logits: ``[N, T, V]``.
        token_ids: int64 ``[N, T]``.
        temperature: Of the distribution that was sampled from.

    Returns:
        float32 ``[N, T]``; the first of each row is 0, for nothing predicts it.
    """
    scaled = logits[:, :-1].float() / temperature
    chosen = scaled.gather(-1, token_ids[:, 1:, None])[..., 0] - scaled.logsumexp(-1)
    return torch.nn.functional.pad(chosen, (1, 0))


def row_weights(
    lengths: Tensor,
    rollouts: Tensor,
    how: Literal["token", "rollout", "constant"] = "token",
    constant: int = 1024,
) -> Tensor:
    """Return what a sampled token of each row counts in the loss.

    Args:
        lengths: int ``[N]``, how many sampled tokens each row has.
        rollouts: int ``[N]``, the number of each row's rollout.
        how: ``token``: all tokens count the same (Yu et al., "DAPO", 2025). ``rollout``: all
            rollouts do, however long and in however many rows (as in the first GRPO). ``constant``:
            a token counts 1 / (rollouts * constant), so that no length is favoured (Dr. GRPO).
        constant: See ``how``.

    Returns:
        float32 ``[N]``. Over all tokens they add up to 1, except with ``constant``.
    """
    lengths = lengths.float()
    numbers, index = rollouts.unique(return_inverse=True)
    if how == "token":
        return torch.ones_like(lengths) / lengths.sum()
    if how == "constant":
        return torch.ones_like(lengths) / (len(numbers) * constant)
    totals = torch.zeros(len(numbers), device=lengths.device).index_add(0, index, lengths)
    return 1 / (totals[index] * len(numbers))


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
) -> Tensor:
    """Return the clipped loss of each token.

    Args:
        logprobs: ``[N, T]``, under the policy that is trained.
        old_logprobs: ``[N, T]``, that the tokens were sampled with.
        advantages: ``[N, 1]`` or ``[N, T]``.
        clip_low: The ratio is clipped at ``1 - clip_low``,
        clip_high: and at ``1 + clip_high``, which may be more (DAPO's "clip higher").
        clip_dual: Bounds the loss of tokens with negative advantage, whose ratio nothing else
            bounds (Ye et al., "Mastering Complex Control in MOBA Games", 2020).

    Returns:
        float32 ``[N, T]``.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-ratio * advantages, -clipped * advantages)
    if clip_dual is not None:
        bounded = torch.minimum(loss, -clip_dual * advantages)
        loss = torch.where(advantages < 0, bounded, loss)
    return loss


def kl_to_reference(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate the KL divergence of the policy from a reference at each token; never negative.

    The estimator k3 of Schulman, "Approximating KL Divergence", 2020
    (http://joschu.net/blog/kl-approx.html), which GRPO uses.

    Args:
        logprobs: ``[N, T]``, of tokens that the policy sampled.
        reference: ``[N, T]``, of the same tokens under the reference.
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1


# -- data ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of tokens to train on.

    Attributes:
        token_ids: int64 ``[T]``.
        mask: bool ``[T]``, True where the policy sampled the token.
        logprobs: float32 ``[T]``, what it was sampled with; 0 elsewhere.
        advantage: Of its rollout.
        rollout: Number of its rollout in the batch.
    """

    token_ids: Tensor
    mask: Tensor
    logprobs: Tensor
    advantage: float
    rollout: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows side by side, padded on the right.

    Attributes:
        token_ids: int64 ``[N, T]``; padding is 0.
        attention: int64 ``[N, T]``, 0 on padding.
        mask: bool ``[N, T]``, False on padding and on what was not sampled.
        old_logprobs: float32 ``[N, T]``.
        advantages: float32 ``[N, 1]``.
        weights: float32 ``[N, 1]``, what each sampled token counts.
    """

    token_ids: Tensor
    attention: Tensor
    mask: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor


def pad_rows(rows: Sequence[Row], weights: Tensor, device: torch.device | str = "cpu") -> Batch:
    """Put rows side by side.

    Args:
        rows: ``N`` rows.
        weights: float32 ``[N]``; see :func:`row_weights`.
        device: Where the batch goes.
    """

    def padded(parts: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).to(device)

    return Batch(
        token_ids=padded([row.token_ids for row in rows]),
        attention=padded([torch.ones_like(row.token_ids) for row in rows]),
        mask=padded([row.mask for row in rows]),
        old_logprobs=padded([row.logprobs for row in rows]),
        advantages=torch.tensor([[row.advantage] for row in rows], device=device),
        weights=weights[:, None].to(device),
    )


def micro_batches(rows: Sequence[Row], most_tokens: int) -> Iterator[list[int]]:
    """Yield indices of rows that fit in one forward pass, rows of like length together.

    Args:
        rows: All rows.
        most_tokens: Most tokens at a time, padding included; a longer row goes alone.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].token_ids))
    some: list[int] = []
    for i in order:  # ascending, so the next row is the longest
        if some and (len(some) + 1) * len(rows[i].token_ids) > most_tokens:
            yield some
            some = []
        some.append(i)
    if some:
        yield some


# -- one step --------------------------------------------------------------------------------------


def update(policy: Policy, rows: Sequence[Row], config: GRPOConfig, step: int) -> dict[str, float]:
    """Train on the rollouts of one step.

    What the rollouts were sampled with is the denominator of the ratio. It is also compared with
    what the policy itself says of the same tokens before anything is trained: they must agree, or
    server and trainer do not hold the same model.

    Args:
        policy: What is trained, in place.
        rows: Of all rollouts.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        step: Its number; with the seed it determines the minibatches.

    Returns:
        Metrics: ``logprob_delta`` (the largest difference), ``entropy``, ``loss``, ``kl``,
        ``clipped`` (share of tokens), ``ratio_max``, ``grad_norm``, ``learning_rate``.
    """
    before = [
        policy.logprobs_of(rows, some) for some in micro_batches(rows, config.micro_batch_tokens)
    ]
    known = {i: part for parts in before for i, part in parts.items()}
    delta = max(
        float((known[i].raw - row.logprobs)[row.mask].abs().max()) for i, row in enumerate(rows)
    )
    sampled = sum(int(row.mask.sum()) for row in rows)
    entropy = sum(float(known[i].entropy[row.mask].sum()) for i, row in enumerate(rows)) / sampled
    if config.temperature != 1:
        # Servers report the model's own log-probabilities, not those of the heated distribution.
        rows = [
            Row(row.token_ids, row.mask, known[i].heated * row.mask, row.advantage, row.rollout)
            for i, row in enumerate(rows)
        ]
    reference = policy.reference_logprobs(rows) if config.kl else None

    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    learning_rate = policy.set_learning_rate(step)
    totals = dict.fromkeys(("loss", "kl", "clipped", "grad_norm"), 0.0)
    ratio_max = 0.0
    updates = config.epochs * config.minibatches
    for part in _minibatches(rows, config, generator):
        mine = [rows[i] for i in part]
        lengths = torch.tensor([int(row.mask.sum()) for row in mine])
        numbers = torch.tensor([row.rollout for row in mine])
        weights = row_weights(lengths, numbers, config.loss, config.loss_tokens)
        for some in micro_batches(mine, config.micro_batch_tokens):
            batch = pad_rows([mine[i] for i in some], weights[some], policy.device)
            logprobs = policy.logprobs(batch)
            losses = policy_loss(
                logprobs,
                batch.old_logprobs,
                batch.advantages,
                config.clip_low,
                config.clip_high,
                config.clip_dual,
            )
            if reference is not None:
                there = [reference[part[i]] for i in some]
                far = torch.nn.utils.rnn.pad_sequence(there, batch_first=True).to(policy.device)
                divergence = kl_to_reference(logprobs, far)
                losses = losses + config.kl * divergence
                totals["kl"] += (
                    float((divergence.detach() * batch.weights)[batch.mask].sum()) / updates
                )
            loss = (losses * batch.weights)[batch.mask].sum()
            loss.backward()
            with torch.no_grad():
                ratio = (logprobs - batch.old_logprobs).exp()[batch.mask]
                outside = (ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)
                totals["loss"] += float(loss.detach()) / updates
                totals["clipped"] += float(outside.sum()) / sampled / config.epochs
                ratio_max = max(ratio_max, float(ratio.max()))
        totals["grad_norm"] += policy.step() / updates
    return {
        "logprob_delta": delta,
        "entropy": entropy,
        "ratio_max": ratio_max,
        "learning_rate": learning_rate,
        **totals,
    }


def _minibatches(
    rows: Sequence[Row], config: GRPOConfig, generator: torch.Generator
) -> Iterator[list[int]]:
    """Yield the rows of each update. The rows of a rollout stay together."""
    rollouts = sorted({row.rollout for row in rows})
    for _ in range(config.epochs):
        order = torch.randperm(len(rollouts), generator=generator).tolist()
        for number in range(config.minibatches):
            chosen = {rollouts[i] for i in order[number :: config.minibatches]}
            part = [i for i, row in enumerate(rows) if row.rollout in chosen]
            if part:
                yield part
