"""Algorithms: they enqueue tasks, read the results, and improve a resource."""

from agl_core.algorithm._base import Algorithm, FastAlgorithm
from agl_core.algorithm._baseline import Baseline
from agl_core.algorithm._batch import (
    BatchOutcome,
    RolloutOutcome,
    cancel_rollouts,
    read_batch,
    run_batch,
    run_requests,
)
from agl_core.algorithm._config import BaselineConfig
from agl_core.algorithm._context import RunContext
from agl_core.algorithm._evaluation import Comparison, ComparisonOutcome, Evaluation
from agl_core.algorithm._functional import FunctionalAlgorithm, algo
from agl_core.algorithm._progress import ProgressReporter, show_progress
from agl_core.algorithm._reward_scale import (
    RewardRange,
    RewardScale,
    comparable,
    earned_reward,
)
from agl_core.algorithm._run import Run, count_rollouts, stored_runs
from agl_core.algorithm._utils import (
    LLMProxyLike,
    add_llm,
    batch_iter_over_dataset,
    with_llm_proxy,
    with_store,
)

__all__ = [
    "Algorithm",
    "Baseline",
    "BaselineConfig",
    "BatchOutcome",
    "Comparison",
    "ComparisonOutcome",
    "Evaluation",
    "FastAlgorithm",
    "FunctionalAlgorithm",
    "LLMProxyLike",
    "ProgressReporter",
    "RewardRange",
    "RewardScale",
    "RolloutOutcome",
    "Run",
    "RunContext",
    "add_llm",
    "algo",
    "batch_iter_over_dataset",
    "cancel_rollouts",
    "comparable",
    "count_rollouts",
    "earned_reward",
    "read_batch",
    "run_batch",
    "run_requests",
    "show_progress",
    "stored_runs",
    "with_llm_proxy",
    "with_store",
]
