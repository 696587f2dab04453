"""Batched sampling from a causal language model, with a key-value cache.

A sequence joins the batch when it arrives and leaves it when it ends (continuous batching: Yu et
al., "Orca", OSDI 2022). Sequences are padded on the left, so that each step appends one column::

    cache mask   [0 0 1 1 1 1]      a sequence of 4 tokens
                 [1 1 1 1 1 1]      a sequence of 6 tokens

One thread owns the model. Weights change only while the batch is empty; otherwise an answer would
mix tokens of two models.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from agl_server_hf.weights import base_model, choose_adapters

__all__ = ["Engine", "Generation", "Sampling", "Token", "sample"]

logger = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class Token:
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
        token_ids: Tokens sampled so far.
        cancelled: True stops the sampling; see :meth:`Engine.cancel`.
        generator: Random generator of a sequence with a seed.
    """

    prompt: Sequence[int]
    sampling: Sampling
    emit: Callable[[Token | Exception], None]
    is_stop: Callable[[Sequence[int]], bool] | None = None
    adapter: str | None = None
    token_ids: list[int] = field(default_factory=list[int])
    cancelled: bool = False
    generator: Any = None


class Engine:
    """Samples for many callers at a time. Its methods may be called from any thread.

    Args:
        model: A causal language model in evaluation mode; the engine takes ownership.
        eos_ids: Tokens that end a sequence.
        max_batch: Largest number of sequences in the batch; further ones wait.
        seed: Seed for the sequences that bring none.
    """

    def __init__(
        self, model: Any, *, eos_ids: Sequence[int], max_batch: int = 64, seed: int | None = None
    ) -> None:
        self._model = model
        self._eos = frozenset(eos_ids)
        self._max_batch = max_batch
        self._generator = torch.Generator(device=model.device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._orders: deque[tuple[Callable[[Any], Any], Future[None]]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # The batch: its sequences, mask [B, T], cache [B, H, T, D] per layer, next logits [B, V].
        self._active: list[Generation] = []
        self._mask: Any = None
        self._cache: list[tuple[Any, Any]] = []
        self._logits: Any = None

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; unfinished sequences fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def submit(self, generation: Generation) -> None:
        """Queue a sequence; its tokens go to ``generation.emit``."""
        with self._changed:
            self._waiting.append(generation)
            self._changed.notify()

    def cancel(self, generation: Generation) -> None:
        """Stop a sequence; it emits no further token."""
        generation.cancelled = True

    def change(self, order: Callable[[Any], Any]) -> Future[None]:
        """Change the model when the batch is empty; sequences that arrive meanwhile wait.

        Args:
            order: Called with the model in the engine's thread; returns the model to use from then
                on. If it raises, the future fails and the model stays.
        """
        future: Future[None] = Future()
        with self._changed:
            self._orders.append((order, future))
            self._changed.notify()
        return future

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        with torch.no_grad():
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closing or self._active or self._orders or self._waiting
                    )
                    if self._closing:
                        break
                    order = self._orders.popleft() if self._orders and not self._active else None
                    new = [] if order or self._orders else self._take()
                if order is not None:
                    self._apply(*order)
                    continue
                try:
                    if new:
                        self._join(new)
                    if self._active:
                        self._step()
                except Exception as error:  # such as out of memory: only this batch fails
                    logger.exception("a batch of %d sequences failed", len(self._active))
                    self._fail([*self._active, *(g for g in new if g not in self._active)], error)
            self._fail([*self._active, *self._waiting], RuntimeError("the server is stopping"))

    def _take(self) -> list[Generation]:
        new: list[Generation] = []
        while self._waiting and len(self._active) + len(new) < self._max_batch:
            generation = self._waiting.popleft()
            if not generation.cancelled:
                new.append(generation)
        return new

    def _apply(self, order: Callable[[Any], Any], future: Future[None]) -> None:
        try:
            self._model = order(self._model)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def _fail(self, generations: Sequence[Generation], error: Exception) -> None:
        self._active, self._mask, self._cache, self._logits = [], None, [], None
        for generation in generations:
            generation.emit(error)

    # -- the batch -------------------------------------------------------------------------------

    def _join(self, new: list[Generation]) -> None:
        """Run the prompts of new sequences through the model and append them to the batch."""
        device = self._model.device
        width = max(len(generation.prompt) for generation in new)
        ids = torch.zeros((len(new), width), dtype=torch.long)
        mask = torch.zeros((len(new), width), dtype=torch.long)
        for row, generation in enumerate(new):
            ids[row, width - len(generation.prompt) :] = torch.tensor(generation.prompt)
            mask[row, width - len(generation.prompt) :] = 1
            if generation.sampling.seed is not None:
                generation.generator = torch.Generator(device=device)
                generation.generator.manual_seed(generation.sampling.seed)
        mask = mask.to(device)
        logits, cache = self._forward(new, ids.to(device), mask, [])
        if self._active:
            longest = max(width, self._mask.shape[1])
            old_gap, new_gap = longest - self._mask.shape[1], longest - width
            mask = torch.cat([pad(self._mask, (old_gap, 0)), pad(mask, (new_gap, 0))])
            cache = [
                (
                    torch.cat([pad(k, (0, 0, old_gap, 0)), pad(more_k, (0, 0, new_gap, 0))]),
                    torch.cat([pad(v, (0, 0, old_gap, 0)), pad(more_v, (0, 0, new_gap, 0))]),
                )
                for (k, v), (more_k, more_v) in zip(self._cache, cache, strict=True)
            ]
            logits = torch.cat([self._logits, logits])
        self._active = self._active + new
        self._mask, self._cache, self._logits = mask, cache, logits

    def _step(self) -> None:
        """Sample one token per sequence, drop finished sequences, run the model on the others."""
        tokens, logprobs, top = sample(self._logits, self._active, self._generator)
        staying: list[int] = []
        for row, generation in enumerate(self._active):
            if generation.cancelled:
                continue
            generation.token_ids.append(tokens[row])
            reason = self._finish_reason(generation)
            if reason is None:
                staying.append(row)
            count = generation.sampling.top_logprobs
            generation.emit(Token(tokens[row], logprobs[row], top[row][:count], reason))
        if not staying:
            self._active, self._mask, self._cache, self._logits = [], None, [], None
            return
        if len(staying) < len(self._active):
            self._keep(staying)
        ids = torch.tensor([[generation.token_ids[-1]] for generation in self._active])
        self._mask = pad(self._mask, (0, 1), value=1)
        self._logits, self._cache = self._forward(
            self._active, ids.to(self._model.device), self._mask, self._cache
        )

    def _keep(self, rows: list[int]) -> None:
        """Keep some rows of the batch; cut columns that are padding in all of them."""
        self._active = [self._active[row] for row in rows]
        index = torch.tensor(rows, device=self._mask.device)
        mask = self._mask[index]
        first = int(mask.any(dim=0).int().argmax())
        self._mask = mask[:, first:]
        self._cache = [(k[index][:, :, first:], v[index][:, :, first:]) for k, v in self._cache]

    def _finish_reason(self, generation: Generation) -> str | None:
        sampling, last = generation.sampling, generation.token_ids[-1]
        if last in sampling.stop_ids or (last in self._eos and not sampling.ignore_eos):
            return "stop"
        if generation.is_stop is not None and generation.is_stop(generation.token_ids):
            return "stop"
        return "length" if len(generation.token_ids) >= sampling.max_tokens else None

    def _forward(
        self,
        generations: Sequence[Generation],
        ids: Any,
        mask: Any,
        past: Sequence[tuple[Any, Any]],
    ) -> tuple[Any, list[tuple[Any, Any]]]:
        """Run the model on the last columns; return the next logits (float32) and the cache.

        Args:
            generations: The ``B`` sequences.
            ids: Token ids, int64 ``[B, N]``.
            mask: 1 where there is a token, int64 ``[B, T]``, ``T >= N``.
            past: Keys and values of the first ``T - N`` columns, per layer.
        """
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{_cache_argument(type(base_model(self._model))): cache},
            **choose_adapters(self._model, [generation.adapter for generation in generations]),
        )
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        return output.logits[:, -1].float(), layers


@functools.cache
def _cache_argument(kind: type[Any]) -> str:
    """Return a model class's name of the cache, which transformers 5.24 has changed."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def sample(
    logits: Any, generations: Sequence[Generation], generator: Any
) -> tuple[list[int], list[float], list[list[tuple[int, float]]]]:
    """Sample the next token of each sequence.

    Args:
        logits: float32 ``[B, V]``.
        generations: The ``B`` sequences.
        generator: Random generator of the sequences without a seed.

    Returns:
        The tokens, their log-probabilities, and the likeliest tokens per sequence.
    """
    wanted = [generation.sampling for generation in generations]
    all_logprobs = logits.log_softmax(-1)
    device = logits.device
    greedy = torch.tensor([s.temperature == 0 for s in wanted], device=device)
    temperature = torch.tensor([s.temperature or 1.0 for s in wanted], device=device)
    probabilities = _cut((logits / temperature[:, None]).softmax(-1), wanted)
    tokens = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    for row, generation in enumerate(generations):
        if generation.generator is not None:
            own = torch.multinomial(probabilities[row], 1, generator=generation.generator)
            tokens[row] = own[0]
    tokens = torch.where(greedy, logits.argmax(-1), tokens)
    logprobs = all_logprobs.gather(-1, tokens[:, None])[:, 0]
    most = max(s.top_logprobs for s in wanted)
    top: list[list[tuple[int, float]]] = [[] for _ in wanted]
    if most:
        best = all_logprobs.topk(min(most, logits.shape[-1]), dim=-1)
        top = [
            list(zip(ids, values, strict=True))
            for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    return tokens.tolist(), logprobs.tolist(), top


def _cut(probabilities: Any, wanted: Sequence[Sampling]) -> Any:
    """Set the probability of tokens outside of ``top_k`` and ``top_p`` to 0.

    Nucleus sampling: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020.
    The result need not add up to 1; ``torch.multinomial`` does not require it.
    """
    size = probabilities.shape[-1]
    if all(s.top_p >= 1 and not s.top_k for s in wanted):
        return probabilities
    device = probabilities.device
    ordered, order = probabilities.sort(-1, descending=True)
    top_k = torch.tensor([s.top_k or size for s in wanted], device=device)
    top_p = torch.tensor([s.top_p if s.top_p < 1 else 2.0 for s in wanted], device=device)
    # A token stays while the likelier ones add up to less than top_p, so at least one stays.
    before = ordered.cumsum(-1) - ordered
    ranks = torch.arange(size, device=device)
    stays = (ranks[None] < top_k[:, None]) & (before < top_p[:, None])
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * stays)
