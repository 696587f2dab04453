"""Attributes that are made when somebody reads them.

A model call has hundreds of attributes, and lists of token ids among them, of which the SDK looks
at every element. Making them is most of what its span would cost the agent's thread, and nobody
reads them before the span is exported, in a thread that has the time.
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

__all__ = ["set_attributes_later"]

_logger = logging.getLogger(__name__)

_NUMBERS: Final = ({int}, {float}, {bool})

Make = Callable[[], Mapping[str, Any]]


def set_attributes_later(span: trace.Span, make: Make) -> None:
    """Set attributes that are made when the span's attributes are next read. Thread-safe.

    To every reader, exporters of the application included, it is as if they had been set at once.
    Setting one at once afterwards counts as reading.

    Args:
        span: A span that has not ended; does nothing for others. Those that are not the SDK's get
            their attributes at once.
        make: Returns the attributes. Called once, in any thread, so what it makes them of must be
            the span's own: the agent goes on with what it was given. What it raises is logged.
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
    """A span's attributes; whatever looks at the dict they are in has the rest made first."""

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
                    self._pending.popleft()  # not before: other readers wait for it
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
        # Of numbers there can be thousands, and nothing about them to clean.
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
            del self._made[next(iter(self._made))]  # the oldest, as the SDK does
            self.dropped += 1
