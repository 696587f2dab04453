"""What algorithms share: batches, runs that can be resumed, and passes over a dataset."""

from agl_algorithm_kit.baseline import Baseline
from agl_algorithm_kit.batch import read_batch, run_batch, run_requests
from agl_algorithm_kit.cancelling import cancel_rollouts
from agl_algorithm_kit.config import BaselineConfig
from agl_algorithm_kit.evaluation import Comparison, Evaluation
from agl_algorithm_kit.records import checkpoints_under, count_rollouts, each_rollout, stored_runs
from agl_algorithm_kit.scores import check_scorer_name, keep_scores, kept_scores, with_scores
from agl_algorithm_kit.stored_run import StoredRun

__all__ = [
    "Baseline",
    "BaselineConfig",
    "Comparison",
    "Evaluation",
    "StoredRun",
    "cancel_rollouts",
    "check_scorer_name",
    "checkpoints_under",
    "count_rollouts",
    "each_rollout",
    "keep_scores",
    "kept_scores",
    "read_batch",
    "run_batch",
    "run_requests",
    "stored_runs",
    "with_scores",
]
