"""Checks of weights before vLLM loads them: tensor names, shapes, LoRA ranks, tied embeddings.

Only headers are read, so a check takes milliseconds for any size. Format of a safetensors file:
https://huggingface.co/docs/safetensors (eight bytes of length, a JSON header, the data).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agl_core.errors import LLMServerError

__all__ = [
    "Shapes",
    "check_adapter",
    "check_checkpoint",
    "is_adapter",
    "refuse_tied",
    "tensor_shapes",
    "write_blank_adapter",
]

Shapes = Mapping[str, tuple[int, ...]]
"""Shape by name of tensor."""

ADAPTER_CONFIG: Final = "adapter_config.json"
_ADAPTER_FILES: Final = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
_HEADS: Final = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")
_TARGETS: Final = ("q_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv")
_FEW: Final = 3
"""Differences that a message names; the rest are of the same kind."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds a LoRA adapter in PEFT's format."""
    return (folder / ADAPTER_CONFIG).is_file()


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of a model.

    Raises:
        LLMServerError: The folder has no safetensors files, or broken ones.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: dict[str, str] = _read_json(index).get("weight_map") or {}
        files = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise LLMServerError(f"{folder} is not a model's folder: it has no *.safetensors files")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes |= _shapes_in(file)
    return shapes


def _shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            size = file.stat().st_size
            if length > size:
                raise ValueError("its header is truncated")
            header: dict[str, Any] = json.loads(stream.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        if 8 + length + end > size:
            raise ValueError("its data is truncated")
        return {name: tuple(entry["shape"]) for name, entry in entries.items()}
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        raise LLMServerError(f"{file} is not a valid safetensors file: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LLMServerError(f"{file} cannot be read: {error}") from error


# -- whole models --------------------------------------------------------------------------------


def check_checkpoint(folder: Path, served: Shapes, *, strict: bool = True) -> None:
    """Refuse a model that vLLM would load partly or wrongly without an error.

    Args:
        folder: Folder of the new model.
        served: Shapes of the model that vLLM was started with.
        strict: Whether its tensors must have the names and shapes of the served ones.

    Raises:
        LLMServerError: It cannot be loaded, its embeddings are tied, or its tensors differ.
    """
    if is_adapter(folder):
        raise LLMServerError(
            f"{folder} is a LoRA adapter: start the server with lora=True to update by adapters"
        )
    if not (folder / "config.json").is_file():
        raise LLMServerError(f"{folder} is not a model's folder: it has no config.json")
    shapes = tensor_shapes(folder)
    refuse_tied(folder, shapes)
    if not strict:
        return
    problems = [f"without {name}" for name in served if name not in shapes]
    problems += [f"with {name}" for name in shapes if name not in served]
    problems += [
        f"with {name} of shape {list(shape)} for {list(served[name])}"
        for name, shape in shapes.items()
        if name in served and shape != served[name]
    ]
    if problems:
        more = f" and {len(problems) - _FEW} more" if len(problems) > _FEW else ""
        raise LLMServerError(
            f"{folder} differs from the served model: {', '.join(problems[:_FEW])}{more}"
        )


def refuse_tied(folder: Path, shapes: Shapes) -> None:
    """Refuse a model whose input and output embeddings are one tensor.

    vLLM replies to the reload of such a model with 200 and then uses wrong weights.

    Raises:
        LLMServerError: The embeddings are tied.
    """
    config = _read_json(folder / "config.json")
    text: dict[str, Any] = config.get("text_config") or {}
    tied = config.get("tie_word_embeddings") is True or text.get("tie_word_embeddings") is True
    if tied or not any(_HEADS.search(name) for name in shapes):
        raise LLMServerError(
            f"{folder} ties its input and output embeddings, which vLLM reloads wrongly without "
            "an error: update by LoRA adapters (lora=True), or train a model that was saved "
            "with tie_word_embeddings=False and an output layer of its own"
        )


# -- adapters ------------------------------------------------------------------------------------


def check_adapter(folder: Path, *, max_rank: int) -> None:
    """Refuse a folder that is not a LoRA adapter, or one of too high a rank.

    Raises:
        LLMServerError: It is not an adapter, its files are broken, or its rank is too high.
    """
    if not is_adapter(folder):
        raise LLMServerError(
            f"{folder} is not a LoRA adapter: it has no {ADAPTER_CONFIG} (this server takes "
            "adapters; with lora=False it takes whole models)"
        )
    config = _read_json(folder / ADAPTER_CONFIG)
    rank = config.get("r")
    if not isinstance(rank, int):
        raise LLMServerError(f"{folder / ADAPTER_CONFIG} has no rank 'r'")
    pattern: Mapping[str, int] = config.get("rank_pattern") or {}
    highest = max([rank, *pattern.values()])
    if highest > max_rank:
        raise LLMServerError(
            f"{folder} is an adapter of rank {highest}: start the server with "
            f"max_lora_rank={highest}, it was {max_rank}"
        )
    files = [folder / name for name in _ADAPTER_FILES if (folder / name).is_file()]
    if not files:
        raise LLMServerError(f"{folder} has no weights: {_ADAPTER_FILES[0]} is missing")
    if files[0].suffix == ".safetensors":
        _shapes_in(files[0])


def write_blank_adapter(folder: Path, shapes: Shapes) -> None:
    """Write an adapter that changes nothing, for a model with these tensors.

    It has rank 1 and a zero matrix B (Hu et al., 2021, https://arxiv.org/abs/2106.09685, section
    4.1), on one kind of attention projection.

    Raises:
        LLMServerError: The model has no known attention projection.
    """
    target = next((t for t in _TARGETS if any(n.endswith(f".{t}.weight") for n in shapes)), None)
    if target is None:
        raise LLMServerError(
            "no first adapter can be made for this model, because it has none of the attention "
            f"projections {', '.join(_TARGETS)}: pass one as adapter="
        )
    tensors: dict[str, Sequence[int]] = {}
    for name, shape in shapes.items():
        if name.endswith(f".{target}.weight") and len(shape) == 2:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{module}.lora_A.weight"] = (1, shape[1])
            tensors[f"{module}.lora_B.weight"] = (shape[0], 1)
    header: dict[str, Any] = {}
    end = 0
    for name, (rows, columns) in tensors.items():
        start, end = end, end + 4 * rows * columns
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 1,
        "lora_alpha": 1,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [target],
        "base_model_name_or_path": None,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2))
    data = struct.pack("<Q", len(text)) + text + bytes(end)
    (folder / _ADAPTER_FILES[0]).write_bytes(data)
