"""Stores on one database that are wrong in one way each: what the fixture ``connect`` returns."""

from __future__ import annotations

from agl_store_memory import InMemoryLightningStore


class Base:
    CAUGHT_BY = ""
    make = InMemoryLightningStore

    def __init__(self) -> None:
        self.store = self.make(scan_debounce_seconds=60)

    def __call__(self, *, elsewhere=False, **options):
        return self.make(**options) if elsewhere else self.store


class SharesEverything(Base):
    CAUGHT_BY = "test_data_elsewhere_are_not_shared"

    def __call__(self, *, elsewhere=False, **options):
        return self.store


class SharesNothing(Base):
    CAUGHT_BY = "test_concurrent_changes_of_one_rollout_are_all_stored"

    def __call__(self, *, elsewhere=False, **options):
        return self.make(**options)


class StoreThatWritesText(InMemoryLightningStore):
    async def update_worker(self, worker_id, heartbeat_stats=None):
        return await super().update_worker(worker_id, {"text": str(heartbeat_stats)})


class WritesText(Base):
    CAUGHT_BY = "test_odd_payloads_are_read_as_they_were_written"
    make = StoreThatWritesText
