"""How busy the GPU is and how much of its memory is used, as ``nvidia-smi`` says.

Without a GPU, memory is that of processes.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import threading
import time
from statistics import fmean
from types import TracebackType
from typing import Final, NamedTuple, Self

__all__ = ["GpuMonitor", "Sample", "has_gpu", "peak_bytes_of_processes"]

_COMMAND: Final = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
    "--loop-ms=100",
    "--id=0",
)


class Sample(NamedTuple):
    """What ``nvidia-smi`` said at a time of :func:`time.time`."""

    seconds: float
    busy: float
    """Share of the last interval in which the GPU ran a kernel."""
    mebibytes: float
    """Memory in use by all processes."""


def has_gpu() -> bool:
    """Return whether this machine has ``nvidia-smi``."""
    return shutil.which(_COMMAND[0]) is not None


class GpuMonitor:
    """Records the first GPU while the context is open."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.wait()
        self._thread.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                busy, mebibytes = map(float, line.split(","))
                self.samples.append(Sample(time.time(), busy / 100, mebibytes))

    def busy_share(self, since: float) -> float:
        """Return the mean share of the time since then in which the GPU was busy."""
        return fmean(sample.busy for sample in self.samples if sample.seconds >= since)

    def peak_bytes(self) -> int:
        """Return the largest memory in use."""
        return int(max(sample.mebibytes for sample in self.samples) * 2**20)


def peak_bytes_of_processes() -> int:
    """Return the largest memory of this process plus that of its largest child."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    return sum(resource.getrusage(kind).ru_maxrss for kind in kinds) * unit
