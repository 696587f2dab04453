"""What stores are built on: an engine with the rules of rollouts, and a port for databases.

* :class:`EngineStore` and :class:`StorageBackend` - the engine implements the store's contract
  once, a backend keeps the data. Most other names are for backends.
* :mod:`agl_store_kit.lifecycle` - the rules of rollouts, attempts and workers, as pure functions.
* :class:`OwnLoop`, :class:`NoticeFeed`, :class:`SharedClock` - for backends of databases: their
  client's event loop, notices between processes, and the database's clock.
* :class:`BatchingStore` - base of stores whose batches are the primitive.
* :class:`Pauses`, :func:`in_slices` - for long work that must not hold the event loop.
* :class:`LightningStoreThreaded` - one store for several threads.
"""

from __future__ import annotations

from agl_store_kit import lifecycle
from agl_store_kit.arguments import attempt_changes, rollout_changes, worker_changes
from agl_store_kit.backend import (
    HIGHEST_COUNTED_SEQUENCE_ID,
    BackendListener,
    ClaimRequest,
    Decide,
    DecideResources,
    DecideWorker,
    Notice,
    RolloutRecord,
    RolloutState,
    StorageBackend,
    attempt_not_found,
    notices_of,
    rollout_not_found,
    rollout_notice,
    standing_claims,
    worker_notice,
)
from agl_store_kit.batching import BatchingStore
from agl_store_kit.clock import SharedClock
from agl_store_kit.engine import EngineStore
from agl_store_kit.feed import NoticeFeed
from agl_store_kit.figures import (
    changed_figures,
    duration_of,
    has_other_reward,
    is_own,
    last_rewards,
    leave_out,
    reward_of,
    settle_rewards,
)
from agl_store_kit.filters import filter_options, sort_key, sortable_fields
from agl_store_kit.late_spans import late_seconds
from agl_store_kit.lifecycle import Change
from agl_store_kit.own_loop import OwnLoop
from agl_store_kit.queries import (
    AttemptQuery,
    Query,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
    run_query,
    run_query_in_slices,
)
from agl_store_kit.records import Record, RecordKind, Restorable
from agl_store_kit.slices import Pauses, in_slices, sorted_in_slices
from agl_store_kit.threaded import LightningStoreThreaded

__all__ = [
    "HIGHEST_COUNTED_SEQUENCE_ID",
    "AttemptQuery",
    "BackendListener",
    "BatchingStore",
    "Change",
    "ClaimRequest",
    "Decide",
    "DecideResources",
    "DecideWorker",
    "EngineStore",
    "LightningStoreThreaded",
    "Notice",
    "NoticeFeed",
    "OwnLoop",
    "Pauses",
    "Query",
    "Record",
    "RecordKind",
    "ResourcesQuery",
    "Restorable",
    "RolloutQuery",
    "RolloutRecord",
    "RolloutState",
    "SharedClock",
    "SpanQuery",
    "StorageBackend",
    "WorkerQuery",
    "attempt_changes",
    "attempt_not_found",
    "changed_figures",
    "duration_of",
    "filter_options",
    "has_other_reward",
    "in_slices",
    "is_own",
    "last_rewards",
    "late_seconds",
    "leave_out",
    "lifecycle",
    "notices_of",
    "reward_of",
    "rollout_changes",
    "rollout_not_found",
    "rollout_notice",
    "run_query",
    "run_query_in_slices",
    "settle_rewards",
    "sort_key",
    "sortable_fields",
    "sorted_in_slices",
    "standing_claims",
    "worker_changes",
    "worker_notice",
]
