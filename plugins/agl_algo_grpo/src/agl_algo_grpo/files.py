"""Weights in folders that appear complete or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

__all__ = ["make_part", "rename", "save_model"]


def save_model(model: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write a whole model in a type, as its base is: tied tensors once, the type in its config.

    ``save_pretrained`` knows tied tensors by their memory, which converted ones do not share, and
    writes the type of the parameters to the config, which is float32 in training.
    """
    tied = _tied_names(model)
    weights = {k: v.to(dtype) for k, v in model.state_dict().items() if k not in tied}
    model.save_pretrained(str(folder), state_dict=weights)
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    # Transformers called it torch_dtype before 5; models of several parts have it in each.
    for part in (config, *(part for part in config.values() if isinstance(part, dict))):
        for spelling in ("dtype", "torch_dtype"):
            if spelling in part:
                part[spelling] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def _tied_names(model: Any) -> set[str]:
    """Return the names of tensors that are another one's memory; a file has the other one only."""
    declared = set(getattr(model, "_tied_weights_keys", None) or ())  # such as lm_head.weight
    of_memory: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, tensor in model.state_dict().items():
        if tensor.numel():
            of_memory.setdefault((tensor.data_ptr(), tuple(tensor.shape)), []).append(name)
    tied: set[str] = set()
    for names in of_memory.values():
        kept = next((name for name in names if name not in declared), names[0])
        tied |= {name for name in names if name != kept}
    return tied


def make_part(folder: Path) -> Path:
    """Make the empty folder that is renamed once it is complete."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def rename(part: Path, folder: Path) -> None:
    """Give the complete folder its name; an older folder of that name is removed."""
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(part, folder)  # noqa: PTH105
