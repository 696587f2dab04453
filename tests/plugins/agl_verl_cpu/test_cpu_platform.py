"""What verl asks of a device, answered by a CPU."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # of verl and what it imports

MIB = 2**20
BLOCK = 256 * MIB  # far more than what a process frees by chance meanwhile


def test_the_peak_of_memory_outlasts_what_was_freed():
    from agl_verl_cpu.platform import CPUPlatform

    device = CPUPlatform.device_module
    block = b"x" * BLOCK
    with_block = device.memory_allocated()
    del block
    assert device.memory_allocated() < with_block - BLOCK // 2
    # The kernel counts pages per thread and adds them up now and then.
    assert device.max_memory_allocated() > with_block - BLOCK // 8
    assert device.max_memory_reserved() == device.max_memory_allocated()
