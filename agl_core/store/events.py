"""Telling listeners what changes, without ever waiting for them."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from agl_core.store.base import StoreEvent
from agl_core.store.wakeup import Wakeup

__all__ = ["EventBus", "Subscription"]

_BUFFER: Final = 4096
"""Events kept for a listener that does not keep up; older ones are lost to it."""


class Subscription:
    """One listener's buffer."""

    __slots__ = ("_events", "wakeup")

    def __init__(self) -> None:
        self._events: deque[StoreEvent] = deque(maxlen=_BUFFER)
        self.wakeup = Wakeup()

    def put(self, event: StoreEvent) -> None:
        self._events.append(event)
        if len(self._events) == 1:
            self.wakeup.set()

    def take(self) -> list[StoreEvent]:
        """Return what is buffered and empty the buffer."""
        events = list(self._events)
        self._events.clear()
        self.wakeup.clear()
        return events


class EventBus:
    """Numbers the changes of a store and hands them to its listeners.

    Not thread-safe; the store's lock guards it.
    """

    def __init__(self) -> None:
        self._number = 0
        self._subscriptions: set[Subscription] = set()
        self.closed = False

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def tell(self, kind: str, time: float, **ids: Any) -> None:
        """Tell a change; the arguments are the fields of :class:`StoreEvent`."""
        # Numbers go on without listeners, so that one who reconnects sees that it missed some.
        self._number += 1
        if self._subscriptions:
            event = StoreEvent.model_validate(
                {"event_id": self._number, "kind": kind, "time": time, **ids}
            )
            for subscription in self._subscriptions:
                subscription.put(event)

    def close(self) -> None:
        """End every listener's stream after what it has buffered."""
        self.closed = True
        for subscription in self._subscriptions:
            subscription.wakeup.set()
