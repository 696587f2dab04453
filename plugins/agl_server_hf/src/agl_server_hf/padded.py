"""A key-value cache for models whose attention cannot read blocks: Transformers' own.

Such models compute their attention outside of Transformers' ``AttentionInterface`` (Bloom, MPT), or
have layers or arguments of it that the blocks do not know (Llama 4, GPT-OSS). The sequences of a
batch are padded on the left to the longest one, and the whole cache is copied for each token. The
tokens are still budgeted in blocks, but nothing is shared.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from agl_server_hf.blocks import Block
from agl_server_hf.cache import Cache, Table
from agl_server_hf.weights import base_model, choose_adapters

__all__ = ["PaddedCache"]

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values ``[B, H, T, D]`` of each layer."""


@dataclass(slots=True)
class _Batch:
    """Keys and values of the sequences of a batch; each has the last columns of its row."""

    layers: Layers


class PaddedCache(Cache):
    """Keys and values of each batch, padded. The arguments are those of :class:`Cache`."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        super().__init__(tokens, device)
        self._rows: dict[Table, tuple[_Batch, int]] = {}

    @staticmethod
    def probe(model: Any) -> Layers:
        """Run two tokens, one after the other; return what is stored of them.

        Raises:
            Exception: The model cannot use the cache; its code raises many types.
        """
        tokens = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        layers: Layers = []
        for length in (1, 2):
            _, layers = _forward(model, tokens, [length], layers, [None])
            if not layers or any(part.shape[2] != length for layer in layers for part in layer):
                raise ValueError("its cache is of another form")
        return layers

    def fork(self, table: Table) -> Table | None:
        copy = super().fork(table)
        if copy is not None and table in self._rows:
            self._rows[copy] = self._rows[table]
        return copy

    def name(self, table: Table, ids: Sequence[int]) -> None:
        """Do nothing: no sequence can use the columns of another one."""

    def close(self, table: Table) -> None:
        super().close(table)
        self._rows.pop(table, None)

    def step(self, running: Sequence[Table], chunks: Sequence[tuple[Table, int]]) -> _PaddedStep:
        return _PaddedStep(self, running, chunks)

    def _copy(self, old: Block, new: Block) -> None:
        """Do nothing: a fork's batch is that of the sequence it comes from."""

    def gather(self, tables: Sequence[Table]) -> Layers:
        """Return the layers of some sequences as a batch, padded to the longest one."""
        known = [self._rows[table] for table in tables if table in self._rows]
        if not known:
            return []
        longest = max(table.length for table in tables)

        def join(layer: int, side: int) -> Tensor:
            parts = [
                batch.layers[layer][side][row : row + 1, :, -table.length :]
                for table, (batch, row) in zip(tables, known, strict=True)
            ]
            return torch.cat([pad(part, (0, 0, longest - part.shape[2], 0)) for part in parts])

        return [(join(layer, 0), join(layer, 1)) for layer in range(len(known[0][0].layers))]

    def keep(self, tables: Sequence[Table], batch: _Batch) -> None:
        """Remember the batch of sequences, in the order of its rows."""
        self._rows.update((table, (batch, row)) for row, table in enumerate(tables))


class _PaddedStep:
    """A forward pass: running sequences together, then each chunk."""

    def __init__(
        self, cache: PaddedCache, running: Sequence[Table], chunks: Sequence[tuple[Table, int]]
    ) -> None:
        self._cache, self._running, self._chunks = cache, running, chunks
        self._batch = _Batch(cache.gather(running)) if running else None

    def advance(self) -> None:
        """Do nothing: the lengths are those of the tables."""

    def run(
        self, model: Any, tokens: Tensor, names: Sequence[str | None], rows: Sequence[int]
    ) -> Tensor:
        """See :meth:`~agl_server_hf.cache.Step.run`."""
        first = len(self._running)
        logits: list[Tensor] = []
        if self._batch is not None:
            lengths = [table.length + 1 for table in self._running]
            some, self._batch.layers = _forward(
                model, tokens[:first, None], lengths, self._batch.layers, names[:first]
            )
            self._cache.keep(self._running, self._batch)
            logits.append(some)
        wanted = set(rows)
        for table, count in self._chunks:
            last = first + count
            some, layers = _forward(
                model,
                tokens[None, first:last],
                [table.length + count],
                self._cache.gather([table]) if table.length else [],
                [names[first]],
            )
            self._cache.keep([table], _Batch(layers))
            if last - 1 in wanted:
                logits.append(some)
            first = last
        return torch.cat(logits) if logits else torch.empty(0)


def _forward(
    model: Any, tokens: Tensor, lengths: Sequence[int], past: Layers, names: Sequence[str | None]
) -> tuple[Tensor, Layers]:
    """Run the model on the last columns of a batch.

    Args:
        model: The model.
        tokens: int64 ``[B, N]``.
        lengths: Number of tokens of each sequence, with these.
        past: Keys and values of the columns before.
        names: Each sequence's adapter.

    Returns:
        The next logits, float32 ``[B, V]``, and the keys and values of all columns.
    """
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(past):
        cache.update(keys, values, layer)
    ends = torch.tensor(lengths)[:, None]
    width = max(lengths)
    positions = (torch.arange(width)[None] + ends - width).to(tokens.device)
    output = model(
        input_ids=tokens,
        attention_mask=(positions >= 0).long(),
        position_ids=positions[:, -tokens.shape[1] :].clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
        **{_cache_argument(type(base_model(model))): cache},
        **choose_adapters(model, names),
    )
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    return output.logits[:, -1].float(), layers


@functools.cache
def _cache_argument(kind: type[Any]) -> str:
    """Return a model class's name of the cache, which transformers 5.24 has changed."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"
