"""The machine state that a worker's heartbeat reports."""

from __future__ import annotations

import functools
import platform
import shutil
import socket
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

_GIB = 1024**3
_MIB = 1024**2
_GPU_QUERY = "name,utilization.gpu,memory.used,memory.total,temperature.gpu"
_GPU_TIMEOUT = 5.0
"""Seconds: nvidia-smi hangs when the driver is in trouble."""


def system_snapshot(*, include_gpu: bool = False) -> dict[str, Any]:
    """Return the state of this machine; takes milliseconds, with GPUs up to seconds.

    Keys: timestamp (ISO 8601, local time), host, os, cpu_name, cpu_cores, cpu_threads,
    cpu_usage_pct (since the previous call in this process), mem_used_gb, mem_total_gb, mem_pct,
    disk_used_gb, disk_total_gb, disk_pct (of the working directory's disk), bytes_sent_mb,
    bytes_recv_mb (since boot) and, if asked for, gpus: a list of {gpu, util_pct, mem_used_mb,
    mem_total_mb, temp_c}. A GB is 2**30 bytes, an MB 2**20.

    Args:
        include_gpu: Ask ``nvidia-smi``; a machine without it has no GPUs.
    """
    import psutil

    memory = psutil.virtual_memory()
    disk = psutil.disk_usage(str(Path.cwd()))
    # psutil returns None in a container whose /proc/net is hidden.
    network: Any = psutil.net_io_counters()
    snapshot: dict[str, Any] = {
        "timestamp": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu_name": _cpu_name(),
        "cpu_cores": psutil.cpu_count(logical=False),
        "cpu_threads": psutil.cpu_count(logical=True),
        "cpu_usage_pct": psutil.cpu_percent(),
        "mem_used_gb": round(memory.used / _GIB, 2),
        "mem_total_gb": round(memory.total / _GIB, 2),
        "mem_pct": memory.percent,
        "disk_used_gb": round(disk.used / _GIB, 2),
        "disk_total_gb": round(disk.total / _GIB, 2),
        "disk_pct": disk.percent,
        "bytes_sent_mb": round(network.bytes_sent / _MIB, 2) if network else 0.0,
        "bytes_recv_mb": round(network.bytes_recv / _MIB, 2) if network else 0.0,
    }
    if include_gpu:
        snapshot["gpus"] = _gpus()
    return snapshot


@functools.cache
def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    answer = subprocess.run(  # noqa: S603 - a fixed command line
        [tool, f"--query-gpu={_GPU_QUERY}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=_GPU_TIMEOUT,
        check=True,
    )
    return [_gpu(line) for line in answer.stdout.splitlines() if line.strip()]


def _gpu(line: str) -> dict[str, Any]:
    name, *figures = [cell.strip() for cell in line.split(",")]
    # nvidia-smi prints "[N/A]" for a figure that the card does not report.
    numbers = [int(cell) if cell.isdigit() else None for cell in figures]
    keys = ("util_pct", "mem_used_mb", "mem_total_mb", "temp_c")
    return {"gpu": name, **dict(zip(keys, numbers, strict=True))}
