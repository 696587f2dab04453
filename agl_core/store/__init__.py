"""The store: the only thing between algorithm and runners.

* :class:`LightningStore` - the contract, for all users of a store.
* :class:`EngineStore` and :class:`StorageBackend` - bases of a new store: the engine implements
  the contract once, a backend keeps the data. The other names are for backends.
* :class:`OwnLoop`, :class:`NoticeFeed` - for backends of databases: their client's event loop, and
  notices between processes.
* :class:`InterceptedStore`, :class:`Interceptor`, :func:`intercept` - what watches a store: a list
  of interceptors that each call passes on its way to the store.
* :class:`BatchingStore` - base of stores whose batches are the primitive.

The stores themselves are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.store._arguments import attempt_changes, rollout_changes, worker_changes
from agl_core.store._backend import (
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
    worker_notice,
)
from agl_core.store._base import LightningStore
from agl_core.store._batching import BatchingStore
from agl_core.store._call import SYNC_CALLS, Method, Next, StoreCall
from agl_core.store._clock import SharedClock
from agl_core.store._encoded import (
    MAX_SPAN_ATTRIBUTES,
    MAX_SPAN_BYTES,
    EncodedSpan,
    SpanParts,
    StoredSpan,
    check_size,
    decode_spans,
    encode_span,
    finite_number,
    hold_span,
)
from agl_core.store._engine import EngineStore
from agl_core.store._feed import NoticeFeed
from agl_core.store._figures import changed_figures, duration_of, last_rewards, reward_of
from agl_core.store._filters import filter_options, sort_key, sortable_fields
from agl_core.store._installed import installed_interceptors, with_installed
from agl_core.store._intercepted import InterceptedStore, innermost, intercept
from agl_core.store._interceptor import Interceptor, InterceptorLike, as_interceptor
from agl_core.store._late_spans import late_seconds
from agl_core.store._own_loop import OwnLoop
from agl_core.store._queries import (
    AttemptQuery,
    Query,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
    run_query,
)
from agl_core.store._records import Record, RecordKind, Restorable
from agl_core.store._request_key import current_request_key, id_from_key
from agl_core.store._values import (
    UNSET,
    FilterLogic,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
)

if TYPE_CHECKING:
    from agl_core.store._default import default_store
    from agl_core.store._memory import InMemoryLightningStore
    from agl_core.store._threaded import LightningStoreThreaded

__all__ = [
    "HIGHEST_COUNTED_SEQUENCE_ID",
    "MAX_SPAN_ATTRIBUTES",
    "MAX_SPAN_BYTES",
    "SYNC_CALLS",
    "UNSET",
    "AttemptQuery",
    "BackendListener",
    "BatchingStore",
    "ClaimRequest",
    "Decide",
    "DecideResources",
    "DecideWorker",
    "EncodedSpan",
    "EngineStore",
    "FilterLogic",
    "InMemoryLightningStore",
    "InterceptedStore",
    "Interceptor",
    "InterceptorLike",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "Method",
    "Next",
    "Notice",
    "NoticeFeed",
    "OwnLoop",
    "Query",
    "Record",
    "RecordKind",
    "ResourcesQuery",
    "Restorable",
    "RolloutQuery",
    "RolloutRecord",
    "RolloutState",
    "SharedClock",
    "SpanParts",
    "SpanQuery",
    "StorageBackend",
    "StoreCall",
    "StoreEvent",
    "StoredSpan",
    "Unset",
    "WorkerQuery",
    "as_interceptor",
    "attempt_changes",
    "attempt_not_found",
    "changed_figures",
    "check_size",
    "current_request_key",
    "decode_spans",
    "default_store",
    "duration_of",
    "encode_span",
    "filter_options",
    "finite_number",
    "hold_span",
    "id_from_key",
    "innermost",
    "installed_interceptors",
    "intercept",
    "last_rewards",
    "late_seconds",
    "notices_of",
    "reward_of",
    "rollout_changes",
    "rollout_not_found",
    "rollout_notice",
    "run_query",
    "sort_key",
    "sortable_fields",
    "with_installed",
    "worker_changes",
    "worker_notice",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "default_store": "agl_core.store._default",
        "InMemoryLightningStore": "agl_core.store._memory",
        "LightningStoreThreaded": "agl_core.store._threaded",
    },
)
