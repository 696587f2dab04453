"""Attention over the blocks of a key-value cache, for any model of Transformers' attention API.

A forward pass has one token of each running sequence (**decoding**), then chunks of prompts. Keys
and values are written to their blocks in place. Decoding reads each block once, where it lies::

    scores of a block  = queries of the sequences that use it x its keys
    softmax            over the scores of all blocks of a sequence
    sum over the blocks of a sequence of  weights x values

A block that several sequences share has several queries, so a shared prompt is read once (as in
Juravsky et al., "Hydragen", 2024). Only scores are gathered, never keys: they are smaller by a
head's size. A sequence is padded to whole blocks, and never to the length of another one. The
blocks of a head lie one after another, so that PyTorch's own attention can read a sequence alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from agl_server_hf.weights import choose_adapters

__all__ = ["NAME", "BlockStep", "Chunk", "Layer", "Probe", "Scan"]

NAME: Final = "agl_blocks"
"""Name of the attention in Transformers' ``AttentionInterface``."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Keys ``[heads, blocks, size, D]`` and values ``[heads, blocks, size, E]`` of a layer."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Scan:
    """Blocks that are read by up to ``width`` decoding sequences each.

    Attributes:
        blocks: Their places, ``[n]``: a slice, so that they are read in place, or int64.
        count: ``n``.
        width: Number of queries per block.
        owners: Row of each query among the decoding sequences, int64 ``[n * width]``.
    """

    blocks: slice | Tensor
    count: int
    width: int
    owners: Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Parts of prompts that have the same number of tokens and of blocks.

    Attributes:
        rows: Place of each token in the forward pass, int64 ``[G, N]``.
        blocks: Places of the blocks of each sequence, int64 ``[G, M]``.
        positions: Positions of the tokens in their sequences, int64 ``[G, N]``.
    """

    rows: Tensor
    blocks: Tensor
    positions: Tensor


class Probe:
    """Takes the place of a :class:`BlockStep` for one token alone: sees what each layer stores."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
        self.layers[layer] = key, value
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1)


class BlockStep:
    """What the attention of one forward pass reads and writes.

    Args:
        layers: The cache, by layer.
        blocks: Place of the block of each token, int64 ``[T]``.
        positions: Position of each token in its sequence, int64 ``[T]``.
        scans: Blocks that the decoding sequences read.
        pairs: Index of each pair of a sequence and a block in the order of the scans, int64
            ``[B, M]``; rows are padded with 0.
        places: Index of each scanned pair in ``pairs``, flattened, int64 ``[P]``; 0 for pairs of
            no sequence.
        bags: Pairs of each sequence one after another, and where each sequence begins.
        alone: Number of tokens before this one, if there is one sequence, whose blocks are in the
            order of its tokens.
        chunks: Parts of prompts.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        blocks: Tensor,
        positions: Tensor,
        scans: Sequence[Scan],
        pairs: Tensor,
        places: Tensor,
        bags: tuple[Tensor, Tensor],
        alone: int | None,
        chunks: Sequence[Chunk],
    ) -> None:
        self._layers = layers
        self._size = layers[0].keys.shape[2]
        self._blocks, self.positions = blocks, positions
        self._offsets = positions % self._size
        self._scans, self._pairs, self._places, self._bags = scans, pairs, places, bags
        self._chunks = chunks
        self._alone = alone
        self._masks: dict[int | None, list[Tensor]] = {}

    def advance(self) -> None:
        """Go on with the next token of the same sequences, in the same blocks."""
        self.positions = self.positions + 1
        self._offsets = self._offsets + 1
        if self._alone is not None:
            self._alone += 1
        self._masks.clear()

    def run(
        self, model: Any, tokens: Tensor, names: Sequence[str | None], rows: Sequence[int]
    ) -> Tensor:
        """Run the model, whose attention is :data:`NAME`.

        Args:
            model: The model.
            tokens: Tokens of the running sequences, then those of the chunks, int64 ``[T]``.
            names: Each token's adapter; None is the model itself.
            rows: Tokens whose logits are wanted, in order.

        Returns:
            float32 ``[len(rows), V]``
        """
        adapters = choose_adapters(model, names)
        # Rows of one token if each has its adapter, else one row: only that can leave out logits.
        shape = (-1, 1) if adapters else (1, -1)
        some = None
        if len(rows) < len(tokens):
            some = torch.tensor(rows, dtype=torch.long).to(tokens.device)
        output = model(
            input_ids=tokens.view(shape),
            position_ids=self.positions.view(shape),
            use_cache=False,
            logits_to_keep=0 if some is None or adapters else some,
            agl_step=self,
            **adapters,
        )
        logits = output.logits.flatten(0, 1)
        # Some models do not know `logits_to_keep`, and return all.
        return (logits if len(logits) == len(rows) else logits[some]).float()

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Store keys and values, and return the attention's output ``[T, heads, E]``.

        Args:
            layer: Number of the layer.
            query: ``[T, heads, D]``.
            key: ``[T, key heads, D]``.
            value: ``[T, key heads, E]``.
            scale: Factor of the scores.
            window: Number of last tokens that a token attends to, itself included; None is all.
            softcap: Bound of the scores, by ``tanh``.
        """
        cache = self._layers[layer]
        cache.keys[:, self._blocks, self._offsets] = key.transpose(0, 1)
        cache.values[:, self._blocks, self._offsets] = value.transpose(0, 1)
        if self._alone is not None and not self._chunks and softcap is None:
            return self._decode_alone(cache, query, self._alone + 1, scale, window)
        if window not in self._masks:
            self._masks[window] = self._make_masks(window)
        decoding, *chunks = self._masks[window]
        running = self._pairs.shape[0]
        if not self._chunks:
            return self._decode(cache, query * scale, decoding, softcap)
        output = query.new_empty((*query.shape[:2], value.shape[2]))
        if running:
            output[:running] = self._decode(cache, query[:running] * scale, decoding, softcap)
        for chunk, mask in zip(self._chunks, chunks, strict=True):
            output[chunk.rows] = _prefill(cache, query[chunk.rows], chunk, mask, scale, softcap)
        return output

    def _make_masks(self, window: int | None) -> list[Tensor]:
        """Return 0 where a key is seen and -inf elsewhere: ``[B, 1, M * size]``, then of chunks.

        Those of chunks are bool ``[G, 1, N, M * size]``, True where a key is seen.
        """
        running, width = self._pairs.shape
        places = torch.arange(width * self._size, device=self.positions.device)
        seen = _seen(self.positions[:running, None], places, window)
        zero = torch.zeros((), device=places.device)
        masks = [torch.where(seen, zero, -torch.inf)[:, None]]
        for chunk in self._chunks:
            places = torch.arange(chunk.blocks.shape[1] * self._size, device=places.device)
            masks.append(_seen(chunk.positions[:, None, :, None], places, window))
        return masks

    def _decode_alone(
        self, cache: Layer, query: Tensor, length: int, scale: float, window: int | None
    ) -> Tensor:
        first = 0 if window is None else max(0, length - window)
        where = self._scans[0].blocks
        keys, values = (
            part[:, where].flatten(1, 2)[None, :, first:length]
            for part in (cache.keys, cache.values)
        )
        # The query heads of a key head are rows of one product.
        query = query.view(1, keys.shape[1], -1, query.shape[2])
        output = functional.scaled_dot_product_attention(query, keys, values, scale=scale)
        return output.view(1, -1, values.shape[3])

    def _decode(self, cache: Layer, query: Tensor, mask: Tensor, softcap: float | None) -> Tensor:
        running, heads, _ = query.shape
        blocks = self._pairs.shape[1]
        rows = query.reshape(running, -1)
        parts = [_product(s, cache.keys[:, s.blocks].transpose(2, 3), rows) for s in self._scans]
        scores = parts[0] if len(parts) == 1 else torch.cat(parts)
        scores = scores.index_select(0, self._pairs.view(-1))
        scores = scores.view(running, blocks, heads, -1).transpose(1, 2)
        weights = _softmax(scores.reshape(running, heads, -1), mask, softcap).to(query.dtype)
        weights = weights.view(running, heads, blocks, -1).transpose(1, 2)
        weights = weights.reshape(running * blocks, -1).index_select(0, self._places)
        parts, first = list[Tensor](), 0
        for scan in self._scans:
            last = first + scan.count * scan.width
            values = cache.values[:, scan.blocks]
            parts.append(_product(scan, values, weights[first:last], own=True))
            first = last
        pairs = (parts[0] if len(parts) == 1 else torch.cat(parts)).float()
        output = functional.embedding_bag(self._bags[0], pairs, self._bags[1], mode="sum")
        return output.view(running, heads, -1).to(query.dtype)


def _seen(positions: Tensor, places: Tensor, window: int | None) -> Tensor:
    seen = places <= positions
    return seen if window is None else seen & (places > positions - window)


def _product(scan: Scan, right: Tensor, rows: Tensor, *, own: bool = False) -> Tensor:
    """Multiply the rows of each block's pairs with the block.

    Args:
        scan: The blocks.
        right: ``[key heads, n, X, Y]``.
        rows: ``[B, heads * X]``, a row per sequence; with ``own`` ``[n * width, heads * X]``.
        own: Whether there is a row for each pair.

    Returns:
        ``[n * width, heads * Y]``
    """
    heads, count, inner, outer = right.shape
    if not own:
        rows = rows.index_select(0, scan.owners)
    left = rows.view(count, scan.width, heads, -1, inner).permute(2, 0, 1, 3, 4)
    left = left.reshape(heads, count, -1, inner)
    product = left.new_empty((heads, count, left.shape[2], outer))
    # The blocks that are not read lie between the heads: one product of all would copy the others.
    for head in range(heads):
        torch.bmm(left[head], right[head], out=product[head])
    product = product.view(heads, count, scan.width, -1, outer).permute(1, 2, 0, 3, 4)
    return product.reshape(count * scan.width, -1)


def _softmax(scores: Tensor, mask: Tensor, softcap: float | None) -> Tensor:
    scores = scores.float()
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores + mask).softmax(-1)


def _prefill(
    cache: Layer, query: Tensor, chunk: Chunk, mask: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """Return the output ``[G, N, heads, E]`` for queries ``[G, N, heads, D]``."""
    keys, values = (
        part[:, chunk.blocks].flatten(2, 3).transpose(0, 1) for part in (cache.keys, cache.values)
    )
    query = query.transpose(1, 2)
    groups = query.shape[1] // keys.shape[1]
    if softcap is None:
        output = functional.scaled_dot_product_attention(
            query, keys, values, mask, scale=scale, enable_gqa=groups > 1
        )
        return output.transpose(1, 2)
    keys, values = (part.repeat_interleave(groups, 1) for part in (keys, values))
    scores = (query @ keys.transpose(2, 3)) * scale
    hidden = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)
    return (_softmax(scores, hidden, softcap).to(query.dtype) @ values).transpose(1, 2)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    agl_step: BlockStep | Probe,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention in the form of Transformers' ``AttentionInterface``; heads are dimension 1."""
    if s_aux is not None:
        raise NotImplementedError("it has attention sinks")
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    rows, columns = query.shape[:2]
    output = agl_step.attend(
        module.layer_idx,
        query.flatten(0, 1),
        key.flatten(0, 1),
        value.flatten(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return output.unflatten(0, (rows, columns)), None


AttentionInterface.register(NAME, _attention)
