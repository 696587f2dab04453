"""Load models from folders, and replace the weights of a model that is being served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from agl_core.errors import LLMServerError
from agl_core.plugins import missing_package

__all__ = [
    "ADAPTER_CONFIG",
    "base_model",
    "choose_adapters",
    "choose_device",
    "choose_dtype",
    "load_model",
    "with_weights",
]

transformers_logging.disable_progress_bar()  # weights load at each step, often within milliseconds

ADAPTER_CONFIG = "adapter_config.json"
"""File that marks a folder as a LoRA adapter in PEFT's format."""
_OWN: Final = "default"  # PEFT's name of the adapter that the server's own model has
_SCALE: Final = ("lora_alpha", "use_rslora", "alpha_pattern")  # and the ranks, which shapes tell
_NO_ADAPTER: Final = "__base__"  # PEFT's word for a row of a batch without an adapter


def choose_device(device: str) -> torch.device:
    """Return the device of this name; ``auto`` is a GPU if there is one."""
    if device != "auto":
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the type of this name; ``auto`` is bfloat16 on a GPU and float32 elsewhere."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]


def load_model(path: str | Path, *, dtype: torch.dtype, device: torch.device | str) -> Any:
    """Load a causal language model, in evaluation mode.

    Raises:
        LLMServerError: The folder holds no model, or weights are missing, superfluous or of another
            shape.
    """
    if not Path(path, "config.json").is_file():
        raise LLMServerError(f"{path} is not a model's folder: it has no config.json")
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises many types
        raise LLMServerError(f"{path} cannot be loaded: {error}") from error
    # Transformers only warns and leaves missing weights random.
    wrong = {
        key: report[key]
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if report.get(key)
    }
    if wrong:
        raise LLMServerError(f"the weights in {path} do not match the model: {wrong}")
    return model.to(device).eval()


def with_weights(model: Any, path: str | Path, adapter: str | None = None) -> Any:
    """Return the model with other weights: the same object, or a wrapper for a first LoRA adapter.

    Args:
        model: The served model; unchanged if this raises.
        path: Folder of a whole model of the same shape, or of a LoRA adapter.
        adapter: Name of a LoRA adapter beside the server's own model; None: the weights are those
            of the server's own model.

    Raises:
        LLMServerError: The weights do not match the model.
    """
    if Path(path, ADAPTER_CONFIG).is_file():
        return _with_adapter(model, path, _OWN if adapter is None else _key(adapter))
    if adapter is not None:
        raise LLMServerError(f"{path} holds no LoRA adapter")
    if hasattr(model, "peft_config"):
        raise LLMServerError(f"{path} holds a whole model, but this server uses a LoRA adapter")
    new = load_model(path, dtype=model.dtype, device="cpu").state_dict()
    old = model.state_dict()
    if _shapes(new) != _shapes(old):
        raise LLMServerError(f"the weights in {path} have another shape than the model's")
    model.load_state_dict(new)
    return model


def choose_adapters(model: Any, names: Sequence[str | None]) -> dict[str, Any]:
    """Return the arguments of a forward pass in which each row has an adapter of its own.

    Args:
        model: The served model.
        names: Name of each row's adapter; None is the server's own model.
    """
    loaded = getattr(model, "peft_config", None)
    if loaded is None or set(loaded) == {_OWN}:
        return {}  # all rows are the same, which is faster
    own = _OWN if _OWN in loaded else _NO_ADAPTER
    return {"adapter_names": [own if name is None else _key(name) for name in names]}


def base_model(model: Any) -> Any:
    """Return the model without PEFT's wrapper, if it has one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _key(name: str) -> str:
    """Return PEFT's name of an adapter; PEFT allows no dots in it."""
    return f"adapter_{name.encode().hex()}"


def _with_adapter(model: Any, path: str | Path, key: str) -> Any:
    try:
        import peft
        from peft.utils import (
            get_peft_model_state_dict,
            load_peft_weights,
            set_peft_model_state_dict,
        )
    except ImportError as error:
        raise missing_package("a LoRA adapter", "agl-server-hf", extra="lora") from error
    _check_adapter(model, path)
    try:
        if not hasattr(model, "peft_config"):
            return peft.PeftModel.from_pretrained(model, str(path), key, is_trainable=False).eval()
        if key not in model.peft_config:
            try:
                model.load_adapter(str(path), key, is_trainable=False)
            except Exception:
                if key in model.peft_config:
                    model.delete_adapter(key)
                raise
            return model.eval()
    except Exception as error:  # PEFT raises many types
        raise LLMServerError(f"the adapter in {path} cannot be used: {error}") from error
    try:
        scales = peft.PeftConfig.from_pretrained(str(path)).to_dict()
        weights = load_peft_weights(str(path), device="cpu")
    except Exception as error:
        raise LLMServerError(f"the adapter in {path} cannot be used: {error}") from error
    # PEFT copies the matrices that match before it refuses the others, and leaves those that the
    # file does not have. It reads the scale only when it adds an adapter.
    old_scales = model.peft_config[key].to_dict()
    old = get_peft_model_state_dict(model, adapter_name=key, save_embedding_layers=False)
    other_scale = any(scales[part] != old_scales[part] for part in _SCALE)
    if _shapes(weights) != _shapes(old) or other_scale:
        raise LLMServerError(
            f"the adapter in {path} has another shape or scale than the one in use"
        )
    set_peft_model_state_dict(model, weights, adapter_name=key)
    return model


def _check_adapter(model: Any, path: str | Path) -> None:
    """Check that every matrix matches a module, before the model is wrapped for good.

    Raises:
        LLMServerError: A matrix matches none, or the file cannot be read.
    """
    from safetensors.torch import load_file

    try:
        tensors = load_file(Path(path, "adapter_model.safetensors"))
    except Exception as error:
        raise LLMServerError(f"the adapter in {path} cannot be read: {error}") from error
    modules = dict(base_model(model).named_modules())
    for key, tensor in tensors.items():
        name, _, matrix = key.removeprefix("base_model.model.").partition(".lora_")
        weight = getattr(modules.get(name), "weight", None)
        side = {"A.weight": 1, "B.weight": 0}.get(matrix)
        if weight is None or side is None or tensor.shape[side] != weight.shape[side]:
            raise LLMServerError(f"the adapter in {path} does not match the model: {key}")


def _shapes(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in tensors.items()}
