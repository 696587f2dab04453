"""What a caller asks the engine for, and what it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Generation", "Sampling", "Token"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample a sequence.

    Attributes:
        max_tokens: Number of tokens after which the sequence ends with ``length``.
        temperature: Temperature of the sampling; 0 takes the likeliest token.
        top_p: Share of the probability mass to sample from, likeliest tokens first.
        top_k: Number of tokens to sample from; 0 is all of them.
        seed: Makes the sequence repeatable; None draws from the engine's own generator.
        stop_ids: Tokens that end the sequence, besides the model's end tokens.
        ignore_eos: Go on after the model's end tokens.
        top_logprobs: Number of likeliest tokens to report per position.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    top_logprobs: int = 0


class Token(NamedTuple):
    """One sampled token.

    Attributes:
        id: Token id.
        logprob: Natural log-probability under the model itself (temperature 1, no cut).
        top: Ids and log-probabilities of the likeliest tokens, likeliest first.
        finish_reason: ``stop`` or ``length`` on the last token of a sequence; else None.
    """

    id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()
    finish_reason: str | None = None


@dataclass(eq=False, slots=True)
class Generation:
    """A sequence to sample.

    Attributes:
        prompt: Token ids, at least one.
        sampling: How to continue the prompt.
        emit: Called in the engine's thread with each token, or with the error that ended it.
        is_stop: Called in the engine's thread with all tokens so far; True ends the sequence.
        adapter: Name of the LoRA adapter to sample with; None is the model itself.
        stream: Whether ``emit`` gets each token; otherwise it gets the last one only.
        token_ids: Tokens sampled so far.
        tokens: The same with their log-probabilities.
        cancelled: True stops the sampling; see :meth:`Engine.cancel`.
        generator: Random generator of a sequence with a seed.
    """

    prompt: Sequence[int]
    sampling: Sampling
    emit: Callable[[Token | Exception], None]
    is_stop: Callable[[Sequence[int]], bool] | None = None
    adapter: str | None = None
    stream: bool = True
    token_ids: list[int] = field(default_factory=list[int])
    tokens: list[Token] = field(default_factory=list[Token])
    cancelled: bool = False
    generator: Any = None
