"""The records in which the content of one store is handed to another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol, runtime_checkable

RecordKind = Literal["resources", "worker", "rollout", "attempt", "span"]


class Record(NamedTuple):
    """One record of a store: its kind and the JSON of its model."""

    kind: RecordKind
    json: bytes


@runtime_checkable
class Restorable(Protocol):
    """A store that imports records unchanged, ids and times included.

    Records come in an order in which they can be stored: resources and workers, then each rollout
    with its attempts and their spans. Queued rollouts enter the queue in that order.
    """

    async def restore(self, records: Iterable[Record]) -> int:
        """Store the missing records atomically; return their number."""
        ...
