"""Models of random parameters, built on the spot: round sizes, and the shapes of published ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agl_tiny_model import build_byte_tokenizer

__all__ = ["REAL", "SIZES", "Shape", "build", "count"]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a decoder.

    Attributes:
        vocabulary: Number of tokens.
        hidden: Width between layers.
        inner: Width inside of a layer's feed-forward part.
        layers: Number of layers.
        heads: Heads of attention.
        groups: Heads of keys and values.
        head: Dimensions of a head.
        tied: Whether input and output embeddings are one tensor.
        qwen3: Qwen3 norms queries and keys; otherwise the model is a Llama.
    """

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    groups: int
    head: int = 64
    tied: bool = False  # vLLM cannot reload tied ones
    qwen3: bool = False


SIZES: Final = {
    "10M": Shape(4096, 256, 768, 9, 4, 4),
    "100M": Shape(16_384, 640, 1792, 16, 10, 10),
    "1B": Shape(32_768, 2048, 5632, 17, 32, 32),
    # Published shapes (config.json of Qwen/Qwen3-0.6B, Qwen/Qwen3-4B, meta-llama/Llama-3.2-1B), and
    # a small one of the same kind for a CPU.
    "qwen3-tiny": Shape(2048, 64, 192, 2, 4, 2, 32, tied=True, qwen3=True),
    "qwen3-0.6B": Shape(151_936, 1024, 3072, 28, 16, 8, 128, tied=True, qwen3=True),
    "qwen3-4B": Shape(151_936, 2560, 9728, 36, 32, 8, 128, tied=True, qwen3=True),
    "llama-1B": Shape(128_256, 2048, 8192, 16, 32, 8, 64, tied=True),
}
REAL: Final = ("qwen3-0.6B", "llama-1B", "qwen3-4B")
"""Names of the published shapes, the smallest first."""


def count(size: str) -> int:
    """Return the number of parameters of a model of this size."""
    shape = SIZES[size]
    hidden = shape.hidden
    attention = 2 * hidden * shape.head * (shape.heads + shape.groups)
    norms = 2 * hidden + 2 * shape.head * shape.qwen3
    layer = attention + 3 * hidden * shape.inner + norms
    embeddings = (1 if shape.tied else 2) * shape.vocabulary * hidden
    return shape.layers * layer + embeddings + hidden


def build(folder: Path, size: str, *, length: int, device: str = "cpu") -> Path:
    """Write a model and its tokenizer to a folder.

    Args:
        folder: Folder of the model.
        size: One of ``SIZES``.
        length: Largest number of tokens of a prompt and its answer together.
        device: PyTorch's device on which the weights are drawn.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
    from transformers.utils import logging

    shape = SIZES[size]
    tokenizer = build_byte_tokenizer(length=length, vocabulary=shape.vocabulary)
    torch.manual_seed(0)
    config = (Qwen3Config if shape.qwen3 else LlamaConfig)(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        head_dim=shape.head,
        max_position_embeddings=length,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)
    logging.disable_progress_bar()
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
