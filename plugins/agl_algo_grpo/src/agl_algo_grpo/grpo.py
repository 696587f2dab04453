r"""Group relative policy optimisation, from rewards and tokens to a step of the optimiser.

Read top to bottom: four formulas, then :func:`update`, which combines them. `algorithm.py` and
`samples.py` collect the rollouts; `policy.py` holds the model and `batches.py` its input.

For each task the policy makes a group of G rollouts with rewards r. A rollout's advantage is its
reward relative to its group (Shao et al., "DeepSeekMath", 2024, https://arxiv.org/abs/2402.03300):

.. math:: A_i = (r_i - mean(r)) / std(r)

Training makes every token that the policy sampled in rollout i likelier if A_i > 0 and less likely
if A_i < 0, within the clipped ratio (Schulman et al., "Proximal Policy Optimization", 2017):

.. math:: L = -\sum_t w_t \min(\rho_t A, clip(\rho_t, 1 - low, 1 + high) A) + \beta KL_t

where :math:`\rho_t` is the token's probability now divided by the probability that it was sampled
with, and the weights w add up to one. Tokens that the model did not sample (prompts, tool results)
are masked.

Shapes: R rollouts; N rows, at least one per rollout (an agent's trajectory may break into several);
T tokens, padded on the right; V words in the vocabulary. All floats are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from agl_algo_grpo.batches import Row, micro_batches, pad_rows
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.policy import Policy

__all__ = [
    "group_advantages",
    "kl_to_reference",
    "policy_loss",
    "row_weights",
    "update",
]


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    how: Literal["group", "group-mean", "rloo"] = "group",
    epsilon: float = 1e-6,
) -> Tensor:
    """Return the advantage of each rollout within its group.

    A group whose rewards are all equal carries no signal: its advantages are 0.

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
            continue  # otherwise rounding errors would be divided by epsilon
        centred = r - r.mean()
        if how == "group":
            centred = centred / (r.std(correction=1) + epsilon)
        elif how == "rloo":
            centred = centred * n / (n - 1)  # = r - (sum(r) - r) / (n - 1)
        advantages[members] = centred.to(rewards.dtype)
    return advantages


def row_weights(
    lengths: Tensor,
    rollouts: Tensor,
    how: Literal["token", "rollout", "constant"] = "token",
    constant: int = 1024,
) -> Tensor:
    """Return the weight in the loss of each row's sampled tokens.

    Args:
        lengths: int ``[N]``, number of sampled tokens of each row.
        rollouts: int ``[N]``, the number of each row's rollout.
        how: ``token``: all tokens weigh the same (Yu et al., "DAPO", 2025). ``rollout``: all
            rollouts weigh the same, whatever their length and number of rows (the original GRPO).
            ``constant``: a token weighs 1 / (rollouts * constant), which favours no length
            (Dr. GRPO).
        constant: See ``how``.

    Returns:
        float32 ``[N]``. Over all tokens the weights add up to 1, except with ``constant``.
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
        logprobs: ``[N, T]``, log-probabilities under the policy in training.
        old_logprobs: ``[N, T]``, log-probabilities that the tokens were sampled with.
        advantages: ``[N, 1]`` or ``[N, T]``.
        clip_low: Lower bound of the ratio: ``1 - clip_low``.
        clip_high: Upper bound of the ratio: ``1 + clip_high``; may be larger than ``clip_low``
            (DAPO's "clip higher").
        clip_dual: Bound of the loss of tokens with negative advantage, whose ratio is otherwise
            unbounded (Ye et al., "Mastering Complex Control in MOBA Games", 2020).

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
    """Return an estimate of the KL divergence from a reference at each token; never negative.

    The estimator k3 of Schulman, "Approximating KL Divergence", 2020
    (http://joschu.net/blog/kl-approx.html), which GRPO uses.

    Args:
        logprobs: ``[N, T]``, log-probabilities of sampled tokens under the policy.
        reference: ``[N, T]``, log-probabilities of the same tokens under the reference.
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1


# -- one step --------------------------------------------------------------------------------------


def update(policy: Policy, rows: Sequence[Row], config: GRPOConfig, step: int) -> dict[str, float]:
    """Train on the rollouts of one step.

    The log-probabilities that the server reported are the denominator of the ratio. Before the
    first update they are compared with the policy's own values for the same tokens. A difference
    means that server and trainer do not hold the same model.

    Args:
        policy: The policy to train, in place.
        rows: Rows of all rollouts.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        step: Number of the step; with the seed it determines the minibatches.

    Returns:
        Metrics: ``logprob_delta`` (largest such difference), ``entropy``, ``loss``, ``kl``,
        ``clipped`` (share of tokens), ``ratio_max``, ``grad_norm``, ``learning_rate``.
    """
    before = [
        policy.evaluate(rows, chosen) for chosen in micro_batches(rows, config.micro_batch_tokens)
    ]
    own = {i: row for part in before for i, row in part.items()}
    delta = max(
        float((own[i].raw - row.logprobs)[row.mask].abs().max()) for i, row in enumerate(rows)
    )
    sampled = sum(int(row.mask.sum()) for row in rows)
    entropy = sum(float(own[i].entropy[row.mask].sum()) for i, row in enumerate(rows)) / sampled
    if config.temperature != 1:
        # Servers report log-probabilities at temperature 1, not at the rollouts' temperature.
        rows = [
            Row(row.token_ids, row.mask, own[i].tempered * row.mask, row.advantage, row.rollout)
            for i, row in enumerate(rows)
        ]
    reference = policy.reference_logprobs(rows) if config.kl else None

    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    learning_rate = policy.set_learning_rate(step)
    totals = dict.fromkeys(("loss", "kl", "clipped", "grad_norm"), 0.0)
    ratio_max = 0.0
    updates = config.epochs * config.minibatches
    for part in _minibatches(rows, config, generator):
        members = [rows[i] for i in part]
        lengths = torch.tensor([int(row.mask.sum()) for row in members])
        numbers = torch.tensor([row.rollout for row in members])
        weights = row_weights(lengths, numbers, config.loss, config.loss_tokens)
        for chosen in micro_batches(members, config.micro_batch_tokens):
            batch = pad_rows([members[i] for i in chosen], weights[chosen], policy.device)
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
                rows_of_reference = [reference[part[i]] for i in chosen]
                padded = torch.nn.utils.rnn.pad_sequence(rows_of_reference, batch_first=True)
                divergence = kl_to_reference(logprobs, padded.to(policy.device))
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
    """Yield the indices of the rows of each update; the rows of a rollout stay together."""
    rollouts = sorted({row.rollout for row in rows})
    for _ in range(config.epochs):
        order = torch.randperm(len(rollouts), generator=generator).tolist()
        for number in range(config.minibatches):
            members = {rollouts[i] for i in order[number :: config.minibatches]}
            part = [i for i, row in enumerate(rows) if row.rollout in members]
            if part:
                yield part
