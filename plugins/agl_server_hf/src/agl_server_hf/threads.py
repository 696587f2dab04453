"""How many of PyTorch's threads the model gets on a CPU.

OpenMP keeps a pool of threads for each thread of the program that computes. Once there are more of
them than cores, they sleep between two operations, and each operation wakes them again: on two
cores a step of a model of 10 million parameters took twice the time that one thread needs. So only
the engine's thread has a pool; the others compute alone.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import torch

__all__ = ["default_threads"]

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time that a container may use in a period, and the period (``cpu.max`` in
Linux's documentation of control groups, version 2); ``max`` for no limit."""


def default_threads(*, shared: bool) -> int:
    """Return the number of threads for a model: PyTorch's own, or fewer in a container.

    PyTorch takes ``OMP_NUM_THREADS``, or all cores that the process may run on. It does not know
    how much of them a container may use.

    Args:
        shared: Whether other programs compute at the same time. Then it is half of the cores: the
            threads of an operation wait for each other, so one whose core is busy stops them all.
            On two cores, one of them busy, two threads took three times as long as one.
    """
    cores = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ:
        return cores
    cores = min(cores, _quota())
    return max(1, cores // 2) if shared else cores


def _quota() -> int:
    """Return the cores that the container may use; without a limit all of the machine."""
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return os.cpu_count() or 1
