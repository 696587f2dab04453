"""The clock and random numbers of an agent, recorded so that a replay repeats them."""

from __future__ import annotations

import random as _random
import secrets
import time

from agl_core.emitter._operation import operation
from agl_core.tracer._active import get_active_tracer

__all__ = ["now", "random"]


def now() -> float:
    """Return the time in Unix epoch seconds; in a replay, the recorded time.

    Each call is recorded as an operation. Outside a rollout it is :func:`time.time`.
    """
    return time.time() if get_active_tracer() is None else _recorded_time()


def random() -> _random.Random:
    """Return a new generator of random numbers; in a replay, one that gives the same numbers.

    Only the seed is recorded, so call this once and keep the generator. Not for cryptography.
    """
    return _random.Random(_seed() if get_active_tracer() is None else _recorded_seed())


def _seed() -> int:
    return secrets.randbits(48)


@operation(name="agl.now", record=True)
def _recorded_time() -> float:
    return time.time()


@operation(name="agl.random", record=True)
def _recorded_seed() -> int:
    return _seed()
