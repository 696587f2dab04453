"""Attributes that are computed on first read.

A model call has hundreds of attributes, among them lists of token ids of which the SDK checks every
element. Computing them takes most of the time that a span costs the agent's thread. They are first
read when the span is exported, which happens in another thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Span as SdkSpan

_logger = logging.getLogger(__name__)

_NUMBERS: Final = ({int}, {float}, {bool})

Make = Callable[[], Mapping[str, Any]]


def set_attributes_later(span: trace.Span, make: Make) -> None:
    """Set attributes that are computed when the span's attributes are next read. Thread-safe.

    Readers, including the application's exporters, see no difference from attributes that were set
    immediately. Setting an attribute immediately afterwards counts as a read.

    Args:
        span: A span that has not ended; other spans are ignored. A span that is not an SDK span
            gets its attributes immediately.
        make: Returns the attributes. It is called once, in any thread, so it must read data that
            only the span uses: the agent may change its own objects. Its errors are logged.
    """
    if not span.is_recording():
        return
    if not isinstance(span, SdkSpan):
        span.set_attributes(make())
        return
    with span._lock:  # pyright: ignore[reportPrivateUsage]
        held = span._attributes  # pyright: ignore[reportPrivateUsage]
        if not isinstance(held, _LaterAttributes):
            held = _LaterAttributes(held)
            span._attributes = held  # pyright: ignore[reportPrivateUsage]
        held.add(span.name, make)


class _LaterAttributes(BoundedAttributes):
    """A span's attributes; reading the underlying dict computes the pending ones first."""

    def __init__(self, present: BoundedAttributes) -> None:
        self._made: dict[str, Any] = {}
        self._pending: deque[tuple[str, Make]] = deque()
        self._making = threading.Lock()
        super().__init__(present.maxlen, None, False, present.max_value_len)
        self._made = present._dict
        self.dropped = present.dropped

    def add(self, name: str, make: Make) -> None:
        self._pending.append((name, make))

    @property
    def _dict(self) -> dict[str, Any]:
        if self._pending:
            with self._making:
                while self._pending:
                    self._fill(*self._pending[0])
                    # After the call, so that other readers see it pending and wait for the lock.
                    self._pending.popleft()
        return self._made

    @_dict.setter
    def _dict(self, value: dict[str, Any]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # fmt: skip
        self._made = value

    def _fill(self, name: str, make: Make) -> None:
        try:
            made = make()
        except Exception:
            _logger.exception("attributes of span %r could not be made", name)
            return
        # Lists of numbers can be long and need no cleaning, so they skip the SDK's check.
        numbers = {
            key: tuple(cast("list[Any]", value))
            for key, value in made.items()
            if type(value) is list and set(map(type, cast("list[Any]", value))) in _NUMBERS
        }
        others = {key: value for key, value in made.items() if key not in numbers}
        cleaned = BoundedAttributes(None, others, False, self.max_value_len)
        self.dropped += cleaned.dropped
        self._made.update(cleaned)
        self._made.update(numbers)
        while self.maxlen is not None and len(self._made) > self.maxlen:
            del self._made[next(iter(self._made))]  # drop the oldest first, as the SDK does
            self.dropped += 1
