"""Samples the next token of each sequence of a batch, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Generator, Tensor

from agl_server_hf.generation import Sampling

__all__ = ["Sampler"]

_ALL: Final = 2**31
"""A ``top_k`` that leaves out nothing: no vocabulary has so many tokens."""


class Sampler:
    """Samples the next token of each sequence of a batch that stays the same.

    Args:
        wanted: How to sample each of the ``B`` sequences.
        own: Random generator of each sequence that has a seed; else None.
        shared: Random generator of the others.
    """

    def __init__(
        self, wanted: Sequence[Sampling], own: Sequence[Generator | None], shared: Generator
    ) -> None:
        self._shared = shared
        self._own = [(row, generator) for row, generator in enumerate(own) if generator is not None]
        self._top = max(s.top_logprobs for s in wanted)
        device = shared.device
        greedy = [s.temperature == 0 for s in wanted]
        self._all_greedy = all(greedy)
        self._greedy = torch.tensor(greedy, device=device)[:, None] if any(greedy) else None
        temperatures = [s.temperature or 1.0 for s in wanted]
        self._temperature = None
        if any(temperature != 1 for temperature in temperatures):
            self._temperature = torch.tensor(temperatures, device=device)[:, None]
        self._cuts = None
        if any(s.top_p < 1 or s.top_k for s in wanted):
            self._cuts = (
                torch.tensor([[min(s.top_k or _ALL, _ALL)] for s in wanted], device=device),
                torch.tensor([[s.top_p if s.top_p < 1 else 2.0] for s in wanted], device=device),
            )

    def __call__(
        self, logits: Tensor
    ) -> tuple[Tensor, list[int], list[float], list[list[tuple[int, float]]]]:
        """Sample.

        Args:
            logits: float32 ``[B, V]``.

        Returns:
            The tokens, int64 ``[B]`` and as a list; their log-probabilities; the likeliest tokens
            of each sequence, nothing if no sequence reports them.
        """
        logprobs = logits.log_softmax(-1)
        tokens = self._draw(logits, logprobs)
        # One transfer: float64 holds every token id exactly.
        chosen = torch.cat((tokens.double(), logprobs.gather(-1, tokens).double()), 1)
        ids, values = chosen.t().tolist()
        top: list[list[tuple[int, float]]] = []
        if self._top:
            best = logprobs.topk(min(self._top, logits.shape[-1]), dim=-1)
            top = [
                list(zip(ids_of_row, values_of_row, strict=True))
                for ids_of_row, values_of_row in zip(
                    best.indices.tolist(), best.values.tolist(), strict=True
                )
            ]
        return tokens[:, 0], list(map(int, ids)), values, top

    def _draw(self, logits: Tensor, logprobs: Tensor) -> Tensor:
        """Return the tokens, int64 ``[B, 1]``."""
        if self._all_greedy:
            return logits.argmax(-1, keepdim=True)
        scaled = logprobs if self._temperature is None else logits / self._temperature
        weights = scaled.exp() if self._temperature is None else scaled.softmax(-1)
        if self._cuts is not None:
            weights = _cut(weights, *self._cuts)
        # The largest quotient of weight and exponential noise is at a token with the probability
        # of that token (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
        # 2006). `torch.multinomial` draws the same numbers, for one sequence at a time.
        noise = torch.empty_like(weights)
        if len(self._own) < len(noise):
            noise.exponential_(generator=self._shared)
        for row, generator in self._own:
            noise[row].exponential_(generator=generator)
        tokens = weights.div_(noise).argmax(-1, keepdim=True)
        if self._greedy is None:
            return tokens
        return torch.where(self._greedy, logits.argmax(-1, keepdim=True), tokens)


def _cut(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set the probability of tokens outside of ``top_k`` and ``top_p``, both ``[B, 1]``, to 0.

    Nucleus sampling: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020.
    The result need not add up to 1.
    """
    ordered, order = weights.sort(-1, descending=True)
    # A token stays while the likelier ones add up to less than top_p, so at least one stays.
    before = ordered.cumsum(-1) - ordered
    ranks = torch.arange(weights.shape[-1], device=weights.device)
    stays = (ranks < top_k) & (before < top_p)
    return torch.zeros_like(weights).scatter(-1, order, ordered * stays)
