"""Passes events to listeners without waiting for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from agl_core.store import StoreEvent
from agl_core.wakeup import Wakeup
from agl_store_kit.backend import Notice

_BUFFER: Final = 4096
"""Number of events kept for a slow listener; it loses older ones."""


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
        """Return the buffered events and empty the buffer."""
        events = list(self._events)
        self._events.clear()
        self.wakeup.clear()
        return events


class EventBus:
    """Numbers the changes of a store and passes them to its listeners. Not thread-safe."""

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

    def publish(self, notices: Sequence[Notice]) -> None:
        """Pass changes to all listeners."""
        first = self._number + 1
        # Count also without listeners: a listener that reconnects sees that it missed events.
        self._number += len(notices)
        if not self._subscriptions:
            return
        for number, notice in enumerate(notices, start=first):
            event = StoreEvent.model_validate({"event_id": number, **notice._asdict()})
            for subscription in self._subscriptions:
                subscription.put(event)

    def close(self) -> None:
        """End every listener's stream after its buffered events."""
        self.closed = True
        for subscription in self._subscriptions:
            subscription.wakeup.set()
