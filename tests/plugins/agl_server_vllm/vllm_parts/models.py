"""Folders that look like models and adapters, of a few bytes each."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (6, 4),
    "model.layers.0.self_attn.q_proj.weight": (8, 4),
    "lm_head.weight": (6, 4),
}


def write_tensors(file: Path, shapes: Mapping[str, tuple[int, ...]], value: float) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in shapes.items():
        size = 1
        for length in shape:
            size *= length
        piece = struct.pack(f"<{size}f", *[value] * size)
        offsets = [len(data), len(data) + len(piece)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        data += piece
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_model(
    folder: Path,
    value: float,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    **config: Any,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", **config}))
    write_tensors(folder / "model.safetensors", shapes, value)
    return folder


def write_adapter(folder: Path, value: float, rank: int = 4, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, **config}))
    shapes = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (rank, 4)}
    write_tensors(folder / "adapter_model.safetensors", shapes, value)
    return folder
