"""A small Llama with a token per byte, for examples and tests that train a model from nothing.

Text and tokens are one to one, so a format is learned in some seconds. Nothing is downloaded.
:mod:`agl_tiny_model.qwen` builds a model whose tokens merge letters, as those of real models do.

Importing this file needs only the standard library; building needs torch, transformers and
tokenizers.
"""

# pyright: reportMissingImports=false
# The libraries that build the model may be missing where this package is installed.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["BYTE_CHAT_TEMPLATE", "build_byte_llama", "build_byte_tokenizer", "build_llama"]

BYTE_CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{{- '<|' + message.role + '|>' + (message.content or '') + '<|end|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
"""A token for the role, the text, and a token for the end."""


def build_byte_tokenizer(
    *,
    length: int,
    chat_template: str = BYTE_CHAT_TEMPLATE,
    roles: Sequence[str] = ("user", "assistant"),
    parts: Sequence[str] = (),
    vocabulary: int | None = None,
) -> Any:
    """Return a tokenizer with a token for each byte, each role, and a few parts of a format.

    Args:
        length: Largest number of tokens of a conversation.
        chat_template: May use ``<|pad|>``, ``<|end|>`` and ``<|ROLE|>`` of each role.
        roles: The roles that have a special token, in the order of their ids.
        parts: Texts that are one token each. They stay in decoded text, where a server's tool
            parser finds them.
        vocabulary: Number of tokens without ``parts``; words without a meaning fill it up.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|end|>", *(f"<|{role}|>" for role in roles)]
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocabulary is not None:
        tokens += [f"w{i}" for i in range(vocabulary - len(tokens) - len(special))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(part, special=False, normalized=False) for part in parts])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",  # noqa: S106 -- no secret
        pad_token="<|pad|>",  # noqa: S106
        chat_template=chat_template,
        model_max_length=length,
        clean_up_tokenization_spaces=False,
    )


def build_byte_llama(tokenizer: Any, *, seed: int = 0) -> Any:
    """Return a Llama for a tokenizer of :func:`build_byte_tokenizer`; see :func:`build_llama`."""
    return build_llama(
        len(tokenizer),
        length=tokenizer.model_max_length,
        pad=tokenizer.pad_token_id,
        end=tokenizer.eos_token_id,
        seed=seed,
    )


def build_llama(vocabulary: int, *, length: int, pad: int, end: int, seed: int = 0) -> Any:
    """Return a Llama of two layers with random weights, float32, on the CPU.

    It has some hundred thousand weights. They are drawn five times as wide as Transformers'
    default, with which so narrow a model hardly learns.

    Args:
        vocabulary: Number of tokens.
        length: Largest number of tokens of a conversation.
        pad: Token that fills up rows.
        end: Token that ends an answer.
        seed: Seed of the weights; the caller's random numbers go on from it.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=length,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=pad,
            initializer_range=0.1,
            dtype="float32",
        )
    )
