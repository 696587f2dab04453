"""Small values of the store contract: the unset marker, capabilities, statistics, events."""

from __future__ import annotations

from typing import Final, Literal, TypedDict, final

from pydantic import BaseModel

FilterLogic = Literal["and", "or"]


@final
class Unset:
    """Type of :data:`UNSET`; a singleton, also after pickling."""

    _instance: Unset | None = None

    def __new__(cls) -> Unset:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __reduce__(self) -> tuple[type[Unset], tuple[()]]:
        return (Unset, ())

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()
"""Default of every optional update: keep the field. ``None`` is a value and overwrites."""


class LightningStoreCapabilities(TypedDict, total=False):
    """The capabilities of a store; an absent key means False."""

    thread_safe: bool
    """May be called from several threads, each with its own loop."""
    async_safe: bool
    """May be called by several tasks of one loop."""
    zero_copy: bool
    """May be handed to another process (fork or pickle), and all see the same data."""
    otlp_traces: bool
    """Accepts spans over OTLP/HTTP at :meth:`LightningStore.otlp_traces_endpoint`."""
    durable: bool
    """Data survives the process once the call that wrote it has returned."""
    events: bool
    """:meth:`LightningStore.events` works."""
    compare_and_set: bool
    """:meth:`LightningStore.swap_resources` works."""


class LightningStoreStatistics(TypedDict, total=False):
    """Counts of what is stored; always exact."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    total_span_bytes: int
    eviction_threshold_bytes: int
    safe_threshold_bytes: int
    memory_capacity_bytes: int


class StoreEvent(BaseModel):
    """One change in a store, as :meth:`LightningStore.events` yields it."""

    event_id: int
    """Increasing within one store; a gap means that events were dropped for a slow listener."""
    kind: Literal["rollout", "attempt", "worker", "resources"]
    time: float
    rollout_id: str | None = None
    attempt_id: str | None = None
    worker_id: str | None = None
    resources_id: str | None = None
    status: str | None = None
    """The new status of the rollout, attempt or worker."""
