"""What holds for every test of this repository."""

import os
import sys
import threading

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, which is shared and noisy.
settings.register_profile("agl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agl")


def free_coverages_lock() -> None:
    """Give a forked process a lock of its own: another thread may have held coverage's."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is not None and current._collector is not None:
        current._collector.data_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=free_coverages_lock)
