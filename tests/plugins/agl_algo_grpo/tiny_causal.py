"""Random models of several architectures, small enough to differentiate many times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

__all__ = ["ARCHITECTURES", "make_causal"]

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-untied": {"model_type": "qwen2", "tie_word_embeddings": False},
    # Logits bounded softly at 3, so that the bound matters for small weights.
    "gemma2": {"final_logit_softcapping": 3.0, "head_dim": 8, "query_pre_attn_scalar": 8},
    "cohere": {"logit_scale": 0.3},  # logits multiplied
    "granite": {"logits_scaling": 4.0},  # logits divided
    "phi": {"partial_rotary_factor": 0.5},  # a head with a bias
    "gpt2": {},  # learned positions, other names
}
"""Options by name; the name is the type of the model unless the options have one."""


def make_causal(name: str, folder: Path | None = None, **options: Any) -> Any:
    """Return a model with weights large enough for probabilities that differ; save it in a folder.

    Args:
        name: Name in :data:`ARCHITECTURES`.
        folder: Where to save it.
        options: Further options of its configuration.
    """
    own = {"model_type": name, **ARCHITECTURES.get(name, {}), **options}
    kind = own.pop("model_type")
    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind == "gpt2":
        sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096}
        for other in ("hidden_size", "intermediate_size", "num_key_value_heads"):
            sizes.pop(other)
        for other in ("num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
            sizes.pop(other)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(sizes | own)))
    with torch.no_grad():
        for name_, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
            elif "bias" in name_:
                parameter.normal_(0, 0.2)
    if folder is not None:
        model.save_pretrained(folder)
    return model.eval()
