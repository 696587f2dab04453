"""The platform ``cpu``, registered in verl's own registry of platforms.

verl imports this module during its own import: ``VERL_USE_EXTERNAL_MODULES`` names it, and
``VERL_PLATFORM=cpu`` selects the platform that it registers. It must therefore import nothing of
verl but the registry.
"""

from __future__ import annotations

import resource
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

__all__ = ["CPUPlatform"]

_MAXRSS_BYTES: Final = 1024
"""Linux, the only system that verl runs on, counts ``ru_maxrss`` in KiB."""


class _Device(types.ModuleType):
    """``torch.cpu`` with the further functions of ``torch.cuda`` that verl calls."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def memory_allocated(self, *_: Any) -> int:
        """Return the resident memory of this process; torch does not count its CPU allocations."""
        return psutil.Process().memory_info().rss

    memory_reserved = memory_allocated

    def max_memory_allocated(self, *_: Any) -> int:
        """Return the highest resident memory of this process so far; nothing can reset it."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES

    max_memory_reserved = max_memory_allocated

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def _nothing(self, *_: Any) -> None:
        """Do nothing: a CPU has no cache to empty and no statistics to reset."""

    empty_cache = ipc_collect = reset_peak_memory_stats = _nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)


_DEVICE = _Device("agl_cpu_device")


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    """One CPU as one device. Its slots are Ray's resource ``GPU``, which the settings declare."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # verl must not detect it by itself; VERL_PLATFORM selects it

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
