"""The conformance suite for stores.

::

    class TestMyStore(StoreSuite):
        flags = frozenset({"thread_safe", "durable", "events"})

        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(path=tmp_path / "db", scan_debounce_seconds=0)

        async def reopen(self, store):
            return MyStore(path=store.path, scan_debounce_seconds=0)
"""

from agl_testing.store.concurrency import ConcurrencyTests
from agl_testing.store.durability import DurabilityTests
from agl_testing.store.ended import EndedTests
from agl_testing.store.ends import EndTests
from agl_testing.store.fields import FieldTests
from agl_testing.store.listing import BatchTests, SortingTests
from agl_testing.store.load import LoadTests
from agl_testing.store.machine import MachineTests
from agl_testing.store.queueing import ClaimTests, QueueTests
from agl_testing.store.reading import EventTests, QueryTests, ResourceTests, WaitTests
from agl_testing.store.spans import SpanArrivalTests, SpanTests
from agl_testing.store.updates import AttemptTests, RolloutUpdateTests, WorkerTests
from agl_testing.store.volume import VolumeTests

__all__ = ["StoreSuite"]


class StoreSuite(
    QueueTests,
    ClaimTests,
    RolloutUpdateTests,
    AttemptTests,
    WorkerTests,
    SpanTests,
    SpanArrivalTests,
    EndedTests,
    QueryTests,
    ResourceTests,
    WaitTests,
    EventTests,
    EndTests,
    FieldTests,
    SortingTests,
    BatchTests,
    ConcurrencyTests,
    DurabilityTests,
    MachineTests,
    LoadTests,
    VolumeTests,
):
    """Tests the contract of stores; see :class:`agl_testing.store.base.StoreTests`."""
