"""Rows of tokens, and the certificate that each row carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agl_adapter_trajectory.breaks import BreakCause


@dataclass(slots=True)
class Certificate:
    """Facts about a row's tokens, from which an algorithm decides what to train on.

    Attributes:
        ids_present: Every call that the agent made between the row's calls has token ids. The
            answer of a call without them is in the row as context.
        logprobs_present: Every model token has the log-probability it was sampled with.
        models: Names of the models that answered, without repeats.
        model_versions: Versions of the weights that answered, without repeats, in order; several
            mean that several policies sampled the row. Empty if the proxy did not record them.
        altered_sampling: Request parameters (penalties, ``min_p``, structured output, …) because of
            which ``logprobs`` are not those of the distribution that the tokens were sampled from;
            see :func:`agl_adapters.altered_sampling`.
        continued: How many of the row's calls had the tokens of the calls before them as the
            beginning of their prompt, not what the chat template renders of the agent's messages;
            see the option ``history`` of LLM proxies.
        fallbacks: Why calls of the row did not although the proxy was asked to, without repeats.
        break_cause: Why the row does not continue an earlier one; None for the first row.
        broken_from: Index of the row with the longest common prefix; None for the agent's first.
        broken_at: Length of the common prefix with that row, in tokens.
    """

    ids_present: bool = True
    logprobs_present: bool = True
    models: list[str] = field(default_factory=list[str])
    model_versions: list[str] = field(default_factory=list[str])
    altered_sampling: list[str] = field(default_factory=list[str])
    continued: int = 0
    fallbacks: list[str] = field(default_factory=list[str])
    break_cause: BreakCause | None = None
    broken_from: int | None = None
    broken_at: int = 0


@dataclass(slots=True)
class TrajectoryRow:
    """One sequence of T tokens to train on; lists have length T unless stated otherwise.

    Attributes:
        agent: Name of the agent; ``"*"`` outside named ones.
        token_ids: int, the tokens that the model saw and sampled, without padding.
        mask: int, 1 where the token was sampled in one of this row's calls, else 0. A token that
            was sampled in one row has mask 0 in every other row that repeats it.
        logprobs: float, the natural log-probability with which the token was sampled, where
            ``mask`` is 1 and it was captured, else 0.0.
        prompt_length: Number of tokens before the first response.
        responses: Positions ``(start, end)`` of each call's response, ascending; ``end`` exclusive.
        rewards: Reward of each call, None where it has none; as long as ``responses``.
        span_ids: Span of each call; as long as ``responses``.
        certificate: Facts about the row's tokens.
    """

    agent: str
    token_ids: list[int] = field(default_factory=list[int])
    mask: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    prompt_length: int = 0
    responses: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    rewards: list[float | None] = field(default_factory=list[float | None])
    span_ids: list[str] = field(default_factory=list[str])
    certificate: Certificate = field(default_factory=Certificate)

    @property
    def reward(self) -> float | None:
        """Reward of the last rewarded call; None if no call has a reward."""
        return next((reward for reward in reversed(self.rewards) if reward is not None), None)


def read_logprobs(entries: Sequence[Any] | None, length: int) -> list[float] | None:
    """Return the log-probability of each sampled token; None if one is missing.

    Args:
        entries: Numbers, or OpenAI's entries with a ``logprob``; None if they were not captured.
        length: How many tokens were sampled.
    """
    if entries is None:
        return None
    numbers = [
        cast("dict[str, Any]", entry).get("logprob") if isinstance(entry, dict) else entry
        for entry in entries
    ]
    if len(numbers) != length or not all(isinstance(number, (int, float)) for number in numbers):
        return None
    return [float(cast("float", number)) for number in numbers]
