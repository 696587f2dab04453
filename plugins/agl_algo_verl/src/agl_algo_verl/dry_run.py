"""What a run would use, without starting it: ``agl train --check``."""

from __future__ import annotations

import json
from pathlib import Path

from agl_algo_verl.config import VERLConfig
from agl_algo_verl.settings import compose, refuse_as
from agl_algo_verl.sizes import check_memory, check_model, resolve_sizes

__all__ = ["describe"]


def describe(options: VERLConfig) -> dict[str, str]:
    """Build verl's whole configuration as its workers do; return the sizes that it comes to.

    The model's files are read if it is a folder. The GPU of this machine, if there is one, is taken
    for that of the workers.

    Args:
        options: Options of the algorithm.

    Raises:
        ConfigError: verl's workers or its servers would refuse the configuration or the model.
    """
    config = compose(options)
    sizes = resolve_sizes(config)
    rows = sizes.rows()
    folder = Path(config.actor_rollout_ref.model.path).expanduser()
    if not (folder / "config.json").is_file():
        return rows | {"model": f"{folder} is not a folder here: its size was not checked"}
    from verl.utils.config import omega_conf_to_dataclass

    with refuse_as("config.actor_rollout_ref.model"):
        omega_conf_to_dataclass(config.actor_rollout_ref.model)
    model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    check_model(config, model)
    parameters = _count_parameters(folder)
    if not parameters:
        return rows
    memory = check_memory(config, sizes, model, parameters, _gpu_bytes())
    return rows | {"model": f"{parameters / 1e6:,.0f}M parameters"} | memory.rows()


def _count_parameters(folder: Path) -> int:
    """Return the number of parameters in a model's safetensors files, of which headers are read."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 -- not a mapping
                size = 1
                for length in tensors.get_slice(name).get_shape():
                    size *= length
                total += size
    return total


def _gpu_bytes() -> int | None:
    """Return the memory of this machine's first GPU; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(0).total_memory
