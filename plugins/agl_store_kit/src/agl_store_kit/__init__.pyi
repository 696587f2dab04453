from . import lifecycle as lifecycle, rows as rows
from .arguments import (
    attempt_changes as attempt_changes,
    rollout_changes as rollout_changes,
    worker_changes as worker_changes,
)
from .backend import (
    HIGHEST_COUNTED_SEQUENCE_ID as HIGHEST_COUNTED_SEQUENCE_ID,
    BackendListener as BackendListener,
    ClaimRequest as ClaimRequest,
    Decide as Decide,
    DecideResources as DecideResources,
    DecideWorker as DecideWorker,
    Notice as Notice,
    RolloutRecord as RolloutRecord,
    RolloutState as RolloutState,
    StorageBackend as StorageBackend,
    attempt_not_found as attempt_not_found,
    notices_of as notices_of,
    rollout_not_found as rollout_not_found,
    rollout_notice as rollout_notice,
    standing_claims as standing_claims,
    worker_notice as worker_notice,
)
from .batching import (
    BatchingStore as BatchingStore,
)
from .clock import (
    SharedClock as SharedClock,
)
from .engine import (
    EngineStore as EngineStore,
)
from .feed import (
    NoticeFeed as NoticeFeed,
)
from .figures import (
    changed_figures as changed_figures,
    duration_of as duration_of,
    has_other_reward as has_other_reward,
    is_own as is_own,
    last_rewards as last_rewards,
    leave_out as leave_out,
    reward_of as reward_of,
    settle_rewards as settle_rewards,
)
from .filters import (
    filter_options as filter_options,
    sort_key as sort_key,
    sortable_fields as sortable_fields,
)
from .late_spans import (
    late_seconds as late_seconds,
)
from .lifecycle import (
    Change as Change,
)
from .own_loop import (
    OwnLoop as OwnLoop,
)
from .queries import (
    AttemptQuery as AttemptQuery,
    Query as Query,
    ResourcesQuery as ResourcesQuery,
    RolloutQuery as RolloutQuery,
    SpanQuery as SpanQuery,
    WorkerQuery as WorkerQuery,
    run_query as run_query,
    run_query_in_slices as run_query_in_slices,
)
from .records import (
    Record as Record,
    RecordKind as RecordKind,
    Restorable as Restorable,
)
from .slices import (
    Pauses as Pauses,
    in_slices as in_slices,
    sorted_in_slices as sorted_in_slices,
)
from .threaded import (
    LightningStoreThreaded as LightningStoreThreaded,
)
