"""Log-probabilities and entropies of tokens from hidden states, without the logits of all of them.

The logits of 16,384 tokens and a vocabulary of 150,000 words are 10 GiB in float32, and a plain
loss holds several such tensors. Here the logits of one chunk of tokens exist at a time. The
backward pass computes them again, as in Chen et al., "Training Deep Nets with Sublinear Memory
Cost", 2016 (https://arxiv.org/abs/1604.06174).

Shapes: T tokens; K of them are looked up; n tokens of a chunk; H hidden units; V words in the
vocabulary. A chunk's size is n * V float32 numbers. Beside the gradients, at most 1.5 chunks are
allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from agl_algo_grpo.batches import Row, collate
from agl_algo_grpo.prefixes import unsupported_by
from agl_core.errors import ConfigError

__all__ = ["Head", "TokenValues"]

_PARTS: Final = 8
"""Parts of a chunk that are worked on at a time: two temporaries of such a part are a quarter."""


@dataclass(frozen=True, slots=True)
class TokenValues:
    """A policy's values for K tokens; all float32 ``[K]``.

    Attributes:
        logprobs: Log-probability at the rollouts' temperature; may have a gradient.
        raw: Log-probability at temperature 1; without gradient.
        entropy: Entropy of the distribution at the rollouts' temperature; without gradient.
    """

    logprobs: Tensor
    raw: Tensor
    entropy: Tensor


class Head:
    """The part of a causal language model between its last hidden states and its logits.

    Most models multiply by one matrix; some scale the logits or bound them softly (Gemma 2). These
    are computed in place. Any other head, such as one with a LoRA adapter, is computed by the
    model's own code: also a chunk at a time, but with some more chunks of memory. Which it is, is
    found out by comparing both on a few tokens.

    Args:
        model: A causal language model of Transformers, or PEFT's wrapper of one.
        dtype: Type of the computation.

    Raises:
        ConfigError: The model's logits do not depend on its last hidden states alone.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._body = self._model.base_model
        self._dtype = dtype
        self._device = self._model.device
        config = self._model.config.get_text_config()
        self.matrix: Any = self._model.get_output_embeddings()
        self.cap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
        """Bound of the logits, as in Gemma Team, "Gemma 2", 2024; 0: there is none."""
        self.scale = float(getattr(config, "logit_scale", None) or 1.0)  # Cohere
        self.scale /= float(getattr(config, "logits_scaling", None) or 1.0)  # Granite
        self._outputs: Any = None
        self._is_linear = self._check(config.hidden_size)

    @property
    def is_linear(self) -> bool:
        """Whether the logits are one matrix product, scaled and bounded."""
        return self._is_linear

    def hidden_states(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the last hidden states ``[B, T, H]`` for the arguments of a forward pass."""
        mask = inputs.get("attention_mask")
        if mask is not None and mask.ndim == 4 and self._attention != "sdpa":
            # Plain attention adds the mask to its scores.
            least = torch.finfo(self._dtype).min
            added = torch.zeros(mask.shape, dtype=self._dtype, device=mask.device)
            inputs = {**inputs, "attention_mask": added.masked_fill_(~mask, least)}
        with self._autocast():
            return self._body(**inputs, use_cache=False).last_hidden_state

    @torch.no_grad()
    def cannot_share(self, longest: int) -> str:
        """Return why rows cannot be computed as a tree of prefixes; empty if they can.

        What is known of the model is believed; what is not, is found out by a small tree.

        Args:
            longest: Tokens of the longest possible row.
        """
        reason = unsupported_by(self._model, longest)
        if reason:
            return reason
        rows = [
            Row(ids, ids > 0, torch.zeros(len(ids)), torch.zeros(len(ids)), rollout=0)
            for ids in map(torch.tensor, ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, 8, 7], [1, 2, 9, 5]))
        ]
        alone = collate(rows, [[0], [1], [2]], device=self._device)
        tree = collate(rows, [[0, 1, 2]], device=self._device, shared=True)
        try:
            mine, theirs = (
                self.hidden_states(batch.inputs).flatten(0, 1)[batch.sources]
                for batch in (tree, alone)
            )
        except (TypeError, ValueError, RuntimeError) as error:
            return f"{type(self._model).__name__} takes no mask of a tree ({error})"
        if not self._is_close(mine, theirs):
            return f"{type(self._model).__name__} computes other values with the mask of a tree"
        return ""

    @property
    def _attention(self) -> str:
        return self._model.config.get_text_config()._attn_implementation

    def values(
        self,
        hidden: Tensor,
        sources: Tensor,
        targets: Tensor,
        *,
        chunk_tokens: int,
        temperature: float = 1.0,
        measure: bool = True,
    ) -> TokenValues:
        """Return the values of tokens, each predicted from the hidden state of another one.

        The gradient of the matrix is added to its ``grad`` directly: a result of its size for each
        chunk would be larger than the chunk.

        Args:
            hidden: float ``[T, H]``.
            sources: int64 ``[K]``, for each token the index of the one that predicts it.
            targets: int64 ``[K]``, the tokens' ids.
            chunk_tokens: Tokens whose logits exist at a time.
            temperature: Temperature of the distribution that was sampled from.
            measure: Whether to compute ``raw`` and ``entropy``; otherwise they are 0.
        """
        with self._autocast():
            if self.is_linear:
                weight, bias = self.matrix.weight, self.matrix.bias
                options = (self, sources, targets, chunk_tokens, temperature, measure)
                found = _LinearHead.apply(hidden, weight, bias, *options)
                return TokenValues(*cast("tuple[Tensor, Tensor, Tensor]", found))
            parts = [
                checkpoint(
                    self._chunk_by_model, hidden, *chunk, temperature, measure, use_reentrant=False
                )
                for chunk in zip(
                    sources.split(chunk_tokens), targets.split(chunk_tokens), strict=True
                )
            ]
        return TokenValues(*(torch.cat(of_chunks) for of_chunks in zip(*parts, strict=True)))

    # -- the linear head -------------------------------------------------------------------------

    def logits_into(self, logits: Tensor, hidden: Tensor) -> None:
        """Write the logits of ``hidden [n, H]`` to ``logits``, float32 ``[n, V]``."""
        weight, bias = self.matrix.weight, self.matrix.bias
        hidden = hidden.to(self._dtype)
        for part in self.parts(len(hidden)):
            matrix = weight[part].to(self._dtype)
            if self._dtype == torch.float32:
                torch.mm(hidden, matrix.T, out=logits[:, part])
            else:
                logits[:, part] = hidden @ matrix.T
            if bias is not None:
                logits[:, part] += bias[part]
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.cap:
            logits.div_(self.cap).tanh_().mul_(self.cap)

    def add_gradients(self, grad: Tensor, hidden: Tensor) -> Tensor:
        """Add to the gradients of the matrix; return those of ``hidden [n, H]``.

        Args:
            grad: float32 ``[n, V]``, gradient of the logits before they are scaled.
            hidden: The hidden states of the chunk.
        """
        weight, bias = self.matrix.weight, self.matrix.bias
        hidden = hidden.to(self._dtype)
        result = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for part in self.parts(len(hidden)):
            of_part = grad[:, part].to(self._dtype)
            if self._dtype == torch.float32:
                result.addmm_(of_part, weight[part].to(self._dtype))
            else:
                result += of_part @ weight[part].to(self._dtype)
            if weight.requires_grad:
                _add_product(_grad_of(weight)[part], of_part.T, hidden)
            if bias is not None and bias.requires_grad:
                _grad_of(bias)[part] += grad[:, part].sum(0)
        return result

    def parts(self, tokens: int) -> Iterator[slice]:
        """Yield the parts of the vocabulary that are multiplied at a time.

        Copies of a part of the matrix and of the logits in another type are then an eighth of a
        chunk, whatever the number of hidden units.
        """
        words, units = self.matrix.weight.shape
        width = words
        if self._dtype != torch.float32 or self.matrix.weight.dtype != torch.float32:
            width = max(1, 4 * tokens * words // (_PARTS * 2 * (tokens + units)))
        for start in range(0, words, width):
            yield slice(start, min(start + width, words))

    # -- the model's own code --------------------------------------------------------------------

    def _chunk_by_model(
        self, hidden: Tensor, sources: Tensor, targets: Tensor, temperature: float, measure: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = self._logits_by_model(hidden[sources]).float()
        spread = (logits / temperature).log_softmax(-1)
        logprobs = spread.gather(-1, targets[:, None])[:, 0]
        raw = entropy = torch.zeros_like(logprobs)
        if measure:
            with torch.no_grad():
                raw = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
                entropy = torch.special.entr(spread.exp()).sum(-1)
        return logprobs, raw, entropy

    def _logits_by_model(self, hidden: Tensor) -> Tensor:
        """Return the logits ``[n, V]`` that the model's own code makes of hidden states."""
        with _returning(self._body, self._outputs(last_hidden_state=hidden[None])):
            ids = torch.zeros(1, len(hidden), dtype=torch.long, device=self._device)
            return self._model(input_ids=ids, use_cache=False).logits[0]

    @torch.no_grad()
    def _check(self, units: int) -> bool:
        """Return whether the head is linear, after a check of the model's own code."""
        ids = torch.tensor([[1, 2, 3]], device=self._device)
        with self._autocast():
            outputs = self._body(input_ids=ids, use_cache=False)
            self._outputs = type(outputs)
            expected = self._model(input_ids=ids, use_cache=False).logits[0]
            if not self._is_close(self._logits_by_model(outputs.last_hidden_state[0]), expected):
                raise ConfigError(
                    f"{type(self._model).__name__} cannot be trained: its logits do not depend on "
                    "its last hidden states alone",
                    path="algorithm.model",
                )
            if type(self.matrix) is not torch.nn.Linear:
                return False
            # Large, because a bound is invisible in small logits. Drawn apart from the run's seed.
            drawn = torch.randn(4, units, generator=torch.Generator().manual_seed(0))
            large = (drawn * 100).to(self._device, outputs.last_hidden_state.dtype)
            if large.shape[1] != self.matrix.weight.shape[1]:
                return False
            theirs = self._logits_by_model(large)
            mine = torch.empty(theirs.shape, device=self._device)
            self.logits_into(mine, large)
        return self._is_close(mine, theirs)

    def _is_close(self, mine: Tensor, theirs: Tensor) -> bool:
        tolerance = 1e-4 if self._dtype == torch.float32 else 2e-2
        difference = (mine.float() - theirs.float()).abs().max()
        return bool(difference <= tolerance * theirs.float().abs().max())

    def _autocast(self) -> torch.autocast:
        half = self._dtype != torch.float32
        return torch.autocast(self._device.type, dtype=self._dtype, enabled=half)


class _LinearHead(torch.autograd.Function):
    """Log-probabilities of tokens from hidden states; see :meth:`Head.values`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        sources: Tensor,
        targets: Tensor,
        chunk_tokens: int,
        temperature: float,
        measure: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs, raw, entropy, norm = torch.zeros(4, len(sources), device=hidden.device)
        for chunk, logits in _chunks(head, hidden, sources, chunk_tokens):
            for part, x in _rows(chunk, logits):
                column = targets[part, None]
                if measure and temperature != 1:
                    raw[part] = x.gather(-1, column)[:, 0] - _softmax(x)[0]
                if temperature != 1:
                    x.div_(temperature)
                norm[part], probabilities = _softmax(x)
                logprobs[part] = x.gather(-1, column)[:, 0] - norm[part]
                if measure:
                    entropy[part] = torch.special.entr(probabilities).sum(-1)
        if measure and temperature == 1:
            raw = logprobs.clone()
        ctx.save_for_backward(hidden, sources, targets, norm)
        ctx.options = head, chunk_tokens, temperature
        ctx.mark_non_differentiable(raw, entropy)
        return logprobs, raw, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, sources, targets, norm = ctx.saved_tensors
        head, chunk_tokens, temperature = ctx.options
        result = torch.zeros_like(hidden)
        for chunk, logits in _chunks(head, hidden, sources, chunk_tokens):
            for part, x in _rows(chunk, logits):
                slope = 1 - (x / head.cap).square_() if head.cap else None
                # d logprob / d logit: 1 for the token's own word, minus each word's probability
                x.div_(temperature).sub_(norm[part, None]).exp_().neg_()
                column = targets[part, None]
                x.scatter_add_(-1, column, torch.ones_like(column, dtype=x.dtype))
                x.mul_(grads[0][part, None] * (head.scale / temperature))
                if slope is not None:
                    x.mul_(slope)
            members = sources[chunk]
            added = head.add_gradients(logits, hidden[members])
            result.index_add_(0, members, added.to(result.dtype))
        return result, *[None] * 8


def _chunks(
    head: Head, hidden: Tensor, sources: Tensor, chunk_tokens: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the logits ``[n, V]`` of each chunk, in memory that the next chunk overwrites."""
    size = min(chunk_tokens, len(sources))
    shape = size, len(head.matrix.weight)
    memory = torch.empty(shape, dtype=torch.float32, device=hidden.device)
    for start in range(0, len(sources), max(size, 1)):
        chunk = slice(start, min(start + size, len(sources)))
        logits = memory[: chunk.stop - start]
        head.logits_into(logits, hidden[sources[chunk]])
        yield chunk, logits


def _rows(chunk: slice, logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts of a chunk, so that temporaries are small; the slice is of the K tokens."""
    size = -(-len(logits) // _PARTS)
    for start in range(0, len(logits), size):
        part = logits[start : start + size]
        yield slice(chunk.start + start, chunk.start + start + len(part)), part


def _softmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``x.logsumexp(-1)`` and ``x.softmax(-1)`` with one temporary of the size of ``x``."""
    top = x.amax(-1, keepdim=True)
    powers = (x - top).exp_()
    total = powers.sum(-1, keepdim=True)
    return (top + total.log())[:, 0], powers.div_(total)


def _grad_of(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to a float32 ``total``; without a temporary if both are float32."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


@contextmanager
def _returning(module: Any, outputs: Any) -> Iterator[None]:
    """Let a module return ``outputs``, whatever it is called with."""
    own = module.__dict__.get("forward")
    module.forward = lambda *_args, **_kwargs: outputs
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own
