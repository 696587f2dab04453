"""Models of 10M, 100M and 1B random parameters, built on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

__all__ = ["SIZES", "build", "count"]

SIZES: Final[dict[str, dict[str, int]]] = {
    "10M": {"vocabulary": 4096, "hidden": 256, "inner": 768, "layers": 9},
    "100M": {"vocabulary": 16_384, "hidden": 640, "inner": 1792, "layers": 16},
    "1B": {"vocabulary": 32_768, "hidden": 2048, "inner": 5632, "layers": 17},
}
_HEAD: Final = 64  # dimensions of an attention head
_TEMPLATE: Final = (
    "{%- for message in messages %}{{- '<|' + message.role + '|>' + message.content + '<|end|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def count(size: str) -> int:
    """Return the number of parameters of a model of this size."""
    shape = SIZES[size]
    hidden, vocabulary = shape["hidden"], shape["vocabulary"]
    layer = 4 * hidden**2 + 3 * hidden * shape["inner"] + 2 * hidden
    return shape["layers"] * layer + 2 * vocabulary * hidden + hidden


def build(folder: Path, size: str, *, length: int, device: str = "cpu") -> Path:
    """Write a model and its tokenizer to a folder.

    Args:
        folder: Folder of the model.
        size: One of ``SIZES``.
        length: Largest number of tokens of a prompt and its answer together.
        device: PyTorch's device on which the weights are drawn.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    tokenizer = _tokenizer(SIZES[size]["vocabulary"], length)
    shape = SIZES[size]
    heads = shape["hidden"] // _HEAD
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=length,
        tie_word_embeddings=False,  # vLLM cannot reload tied ones
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.device(device):
        model = LlamaForCausalLM(config)
    logging.disable_progress_bar()
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(vocabulary: int, length: int) -> Any:
    """Return a byte-level tokenizer with so many tokens; a random model samples all of them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"w{i}" for i in range(vocabulary - len(tokens) - len(special))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        chat_template=_TEMPLATE,
        model_max_length=length,
        clean_up_tokenization_spaces=False,
    )
