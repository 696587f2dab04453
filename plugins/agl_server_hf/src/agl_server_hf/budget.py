"""Fits a key-value cache to a model: what its layers store, and how much memory there is."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any, Final

import torch

from agl_core.errors import LLMServerError
from agl_server_hf.attention import NAME, Probe
from agl_server_hf.cache import BLOCK, BlockCache, Cache, token_bytes
from agl_server_hf.padded import PaddedCache
from agl_server_hf.weights import base_model, choose_adapters

__all__ = ["context_length", "fit_cache"]

logger = logging.getLogger(__name__)

_SHARE: Final = 0.25
"""Largest share of the device's memory for a cache of no given size: a trainer may be beside it."""
_SAMPLE: Final = 48
"""Tokens to compare a model's logits with: enough to need a second block."""
_TOLERANCE: Final = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest relative difference of logits. Rounding makes a tenth of it; a part of the attention that
is left out makes more."""
_LAYERS: Final = {"full_attention", "sliding_attention"}
"""Kinds of layers, in Transformers' ``layer_types``, whose attention is known here."""

_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
"""Where Linux tells a container how much memory it may use: control groups of version 2 and 1."""


def context_length(model: Any) -> int:
    """Return the largest number of tokens of a sequence that the model was made for."""
    return getattr(base_model(model).config, "max_position_embeddings", None) or 4096


def fit_cache(
    model: Any, *, max_batch: int, max_length: int | None = None, tokens: int | None = None
) -> Cache:
    """Allocate a cache, and let the model's attention use it.

    A model whose attention cannot read blocks runs with a padded cache, which is slower.

    Args:
        model: A causal language model; from now on it runs with a step of the cache only.
        max_batch: Largest number of sequences in the batch.
        max_length: Largest number of tokens of a sequence; None: the model's.
        tokens: Number of tokens to have room for. None: enough for a full batch of the longest
            sequences, in at most a quarter of the device's memory.

    Raises:
        LLMServerError: The model stores something else than keys and values, or the memory does
            not suffice.
    """
    base = base_model(model)
    own = base.config._attn_implementation
    try:
        layers = _probe(model)
    except _Unfit as why:
        base.set_attn_implementation(own)
        padded = _fit_padded(model, max_batch, max_length, tokens)
        logger.warning(
            "the key-value cache of %s is padded and copied for each token, which is slow: %s",
            *(type(base).__name__, why),
        )
        return padded
    tokens = tokens or _affordable(model, max_batch, max_length, token_bytes(layers.values()))
    size = tokens * token_bytes(layers.values()) / 2**30
    try:
        blocks = BlockCache(layers, tokens)
    except (ValueError, RuntimeError, OSError) as error:
        raise LLMServerError(
            f"a key-value cache of {tokens} tokens ({size:.1f} GiB) cannot be allocated: {error}; "
            "set cache_tokens"
        ) from error
    logger.info("the key-value cache holds %d tokens in %.2f GiB", blocks.tokens, size)
    return blocks


def _fit_padded(
    model: Any, max_batch: int, max_length: int | None, tokens: int | None
) -> PaddedCache:
    name = type(base_model(model)).__name__
    try:
        with torch.no_grad():
            layers = PaddedCache.probe(model)
    except Exception as error:  # models raise many types
        raise LLMServerError(
            f"this server cannot run {name}, which stores something else than keys and values "
            f"({error}); use vLLM"
        ) from error
    if tokens is None:
        # Two tokens were stored.
        tokens = _affordable(model, max_batch, max_length, token_bytes(layers) // 2)
    try:
        return PaddedCache(tokens, model.device)
    except ValueError as error:
        raise LLMServerError(f"{error}; set cache_tokens") from error


def _affordable(model: Any, max_batch: int, max_length: int | None, bytes_per_token: int) -> int:
    """Return the number of tokens of a cache of no given size."""
    longest = max_length or context_length(model)
    wanted = max_batch * -(-longest // BLOCK) * BLOCK
    return min(wanted, int(_SHARE * _memory(model.device)) // bytes_per_token)


class _Unfit(Exception):
    """Why a model cannot use a cache in blocks."""


def _probe(model: Any) -> dict[int, Any]:
    """Let the attention read blocks; return what each layer stores of a token.

    Raises:
        _Unfit: The model's attention is another one.
    """
    base = base_model(model)
    config = base.config.get_text_config()
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYERS)
    if unknown:
        raise _Unfit(f"it has layers of the kind {', '.join(unknown)}")
    if getattr(config, "num_kv_shared_layers", 0):
        raise _Unfit("its layers share keys")
    ids = torch.arange(_SAMPLE, device=model.device)[None] % config.vocab_size
    more = choose_adapters(model, [None])
    try:
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False, **more).logits[0]
            base.set_attn_implementation(NAME)
            probe = Probe()
            model(
                input_ids=ids[:, :1],
                position_ids=torch.zeros_like(ids[:, :1]),
                use_cache=False,
                agl_step=probe,
                **more,
            )
            if not probe.layers:
                raise _Unfit("its attention cannot be replaced")
            if sorted(probe.layers) != list(range(len(probe.layers))):
                raise _Unfit("its layers are not numbered in order")
            said = _sample_logits(model, BlockCache(probe.layers, 2 * _SAMPLE), ids[0])
    except _Unfit:
        raise
    except Exception as error:  # models raise many types
        raise _Unfit(f"its attention cannot be replaced ({error})") from error
    # What a model's attention does with arguments that are unknown here shows in its logits.
    wrong = float((said - expected.float()).norm() / expected.float().norm())
    if not wrong < _TOLERANCE[expected.dtype]:
        raise _Unfit(f"a cache in blocks changes its logits by {wrong:.1%}")
    return probe.layers


def _sample_logits(model: Any, cache: BlockCache, ids: torch.Tensor) -> torch.Tensor:
    """Run tokens with a cache, the first half at once; return the logits of all."""
    half = len(ids) // 2
    table = cache.open(ids.tolist(), None)
    cache.grow(table, len(ids))
    logits = [cache.step([], [(table, half)]).run(model, ids[:half], [None] * half, range(half))]
    for number in range(half, len(ids)):
        table.length = number
        logits.append(cache.step([table], []).run(model, ids[number : number + 1], [None], [0]))
    return torch.cat(logits)


def _memory(device: torch.device) -> int:
    """Return the bytes of memory of a device; for a CPU at most those of the container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
            sizes.append(int(Path(file).read_text()))
    return min(sizes)
