from .baseline import (
    Baseline as Baseline,
)
from .batch import (
    read_batch as read_batch,
    run_batch as run_batch,
    run_requests as run_requests,
)
from .cancelling import (
    cancel_rollouts as cancel_rollouts,
)
from .config import (
    BaselineConfig as BaselineConfig,
)
from .evaluation import (
    Comparison as Comparison,
    Evaluation as Evaluation,
)
from .records import (
    checkpoints_under as checkpoints_under,
    count_rollouts as count_rollouts,
    stored_runs as stored_runs,
)
from .scores import (
    check_scorer_name as check_scorer_name,
    keep_scores as keep_scores,
    kept_scores as kept_scores,
    with_scores as with_scores,
)
from .stored_run import (
    StoredRun as StoredRun,
)
