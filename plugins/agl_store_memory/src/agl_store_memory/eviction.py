"""Limits and estimates of the memory that spans take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, cast

from agl_core.errors import InvalidArgumentError
from agl_core.store import EncodedSpan
from agl_core.types import Span

logger = logging.getLogger(__name__)

_FALLBACK_CAPACITY: Final = 8 * 1024**3
"""Bytes, where the machine does not tell its memory: a small one's."""
_EVICTION_RATIO: Final = 0.7
"""Share of the memory, and share of that to which it shrinks: both as in version 0.3."""
_SAFE_RATIO: Final = 0.8

_SPAN_OVERHEAD: Final = 800
"""Bytes of a stored span besides its JSON: the object, its ids, its entries in the indexes."""
_PARTS_OVERHEAD: Final = 1000
"""Bytes of a span held as an object, besides its attributes."""
_ATTRIBUTE_OVERHEAD: Final = 110
"""Bytes of an attribute besides its text: its dict entry, the headers of two objects."""
_NUMBER_BYTES: Final = 20
"""Bytes of a number in a list, between those of its JSON and those of its object."""


def memory_capacity() -> int:
    """Return the machine's memory in bytes, or 8 GiB if the platform does not report it."""
    import psutil

    try:
        total = int(psutil.virtual_memory().total)
    except (OSError, RuntimeError, ValueError, NotImplementedError) as error:
        logger.warning("Cannot read the size of this machine's memory (%s); assuming 8 GiB", error)
        return _FALLBACK_CAPACITY
    return total if total > 0 else _FALLBACK_CAPACITY


def span_bytes(span: EncodedSpan) -> int:
    """Return an estimate of the memory of a stored span, in bytes."""
    parts = span.parts
    if parts is None:
        return len(span.payload) + _SPAN_OVERHEAD
    attributes = parts.attributes
    size = _PARTS_OVERHEAD + _ATTRIBUTE_OVERHEAD * len(attributes) + sum(map(len, attributes))
    for value in attributes.values():
        if type(value) is str:
            size += len(value)
        elif type(value) is list:
            items = cast("list[Any]", value)
            is_text = bool(items) and type(items[0]) is str
            size += sum(map(len, items)) if is_text else _NUMBER_BYTES * len(items)
    return size


class MemoryBudget:
    """The thresholds of eviction.

    Args:
        eviction: Evict when spans take more than this: a ratio of the capacity (a float) or bytes
            (an int); None means 70 % of the capacity.
        safe: Evict down to this, a ratio or bytes; None means 80 % of the eviction threshold.
        estimator: Size of a span in bytes; None estimates it from its text.
        capacity: Bytes of memory that ratios refer to.

    Raises:
        InvalidArgumentError: A value is out of range, or ``safe`` is not below ``eviction``.
    """

    def __init__(
        self,
        eviction: float | int | None,
        safe: float | int | None,
        estimator: Callable[[Span], int] | None,
        capacity: int,
    ) -> None:
        if capacity <= 0:
            raise InvalidArgumentError(f"the memory capacity must be positive, not {capacity}")
        if estimator is not None and not callable(estimator):
            raise InvalidArgumentError(f"span_size_estimator must be callable, not {estimator!r}")
        self.capacity = capacity
        self.eviction = _resolve(
            "eviction_memory_threshold",
            _EVICTION_RATIO if eviction is None else eviction,
            capacity,
            least=1,
        )
        if safe is None:
            self.safe = int(self.eviction * _SAFE_RATIO)
        else:
            self.safe = _resolve("safe_memory_threshold", safe, capacity, least=0)
        if self.safe >= self.eviction:
            raise InvalidArgumentError(
                f"safe_memory_threshold ({self.safe} bytes) must be below "
                f"eviction_memory_threshold ({self.eviction} bytes)"
            )
        self._estimator = estimator

    def size_of(self, span: EncodedSpan) -> int:
        """Return the size of a span in bytes, at least 0."""
        if self._estimator is None:
            return span_bytes(span)
        return max(int(self._estimator(span.decode())), 0)


def _resolve(name: str, value: Any, capacity: int, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgumentError(f"{name} must be a ratio (float) or bytes (int), not {value!r}")
    if isinstance(value, int):
        if value < least:
            raise InvalidArgumentError(f"{name} must be at least {least} bytes, not {value}")
        return value
    if not 0 <= value <= 1 or (least and not value):
        low = "more than 0" if least else "at least 0"
        raise InvalidArgumentError(f"{name} must be {low} and at most 1 as a ratio, not {value}")
    return max(int(capacity * value), least)
