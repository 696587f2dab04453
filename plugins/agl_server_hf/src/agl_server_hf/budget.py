"""Fits a key-value cache to a model: what its layers store, and how much memory there is."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import torch

from agl_core.errors import LLMServerError
from agl_server_hf.attention import NAME, Probe
from agl_server_hf.cache import BLOCK, Cache
from agl_server_hf.weights import base_model, choose_adapters

__all__ = ["context_length", "fit_cache"]

logger = logging.getLogger(__name__)

_SHARE: Final = 0.25
"""Largest share of the device's memory for a cache of no given size: a trainer may be beside it."""
_LAYERS: Final = {"full_attention", "sliding_attention"}
"""Kinds of layers, in Transformers' ``layer_types``, whose attention is known here."""


def context_length(model: Any) -> int:
    """Return the largest number of tokens of a sequence that the model was made for."""
    return getattr(base_model(model).config, "max_position_embeddings", None) or 4096


def fit_cache(
    model: Any, *, max_batch: int, max_length: int | None = None, tokens: int | None = None
) -> Cache:
    """Allocate a cache, and let the model's attention use it.

    Args:
        model: A causal language model; from now on it runs with a step of the cache only.
        max_batch: Largest number of sequences in the batch.
        max_length: Largest number of tokens of a sequence; None: the model's.
        tokens: Number of tokens to have room for. None: enough for a full batch of the longest
            sequences, in at most a quarter of the device's memory.

    Raises:
        LLMServerError: The model's attention is of an unknown kind, or the memory does not suffice.
    """
    layers = _probe(model)
    if tokens is None:
        longest = max_length or context_length(model)
        wanted = max_batch * -(-longest // BLOCK) * BLOCK
        tokens = min(wanted, int(_SHARE * _memory(model.device)) // Cache.token_bytes(layers))
    size = tokens * Cache.token_bytes(layers) / 2**30
    try:
        cache = Cache(layers, tokens)
    except (ValueError, RuntimeError) as error:
        raise LLMServerError(
            f"a key-value cache of {tokens} tokens ({size:.1f} GiB) cannot be allocated: {error}; "
            "set cache_tokens"
        ) from error
    logger.info("the key-value cache holds %d tokens in %.2f GiB", cache.tokens, size)
    return cache


def _probe(model: Any) -> dict[int, Any]:
    """Run one token; return what each layer stores of it.

    Raises:
        LLMServerError: See :func:`fit_cache`.
    """
    base = base_model(model)
    name = type(base).__name__
    config = base.config
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = sorted(kinds - _LAYERS)
    shared = getattr(config, "num_kv_shared_layers", 0)
    if unknown or shared or getattr(base, "_is_stateful", False):
        what = ", ".join(unknown) or ("layers that share keys" if shared else "a state")
        raise LLMServerError(f"this server cannot run {name}, which has {what}; use vLLM")
    probe = Probe()
    try:
        base.set_attn_implementation(NAME)
        with torch.no_grad():
            model(
                input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device),
                position_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device),
                use_cache=False,
                agl_step=probe,
                **choose_adapters(model, [None]),
            )
    except Exception as error:  # models raise many types
        raise LLMServerError(
            f"this server cannot run {name}, whose attention cannot be replaced ({error}); use vLLM"
        ) from error
    if sorted(probe.layers) != list(range(config.num_hidden_layers)):
        raise LLMServerError(
            f"this server cannot run {name}: {len(probe.layers)} of {config.num_hidden_layers} "
            "layers have an attention that can be replaced; use vLLM"
        )
    return probe.layers


def _memory(device: torch.device) -> int:
    """Return the bytes of memory of a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
