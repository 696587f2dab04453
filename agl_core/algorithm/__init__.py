"""Algorithms: they enqueue tasks, read the results, and improve a resource."""

from agl_core.algorithm._base import Algorithm, FastAlgorithm
from agl_core.algorithm._context import RunContext
from agl_core.algorithm._functional import FunctionalAlgorithm, algo
from agl_core.algorithm._outcomes import BatchOutcome, ComparisonOutcome, RolloutOutcome
from agl_core.algorithm._progress import ProgressReporter, show_progress
from agl_core.algorithm._reward_scale import (
    RewardRange,
    RewardScale,
    comparable,
    earned_reward,
)
from agl_core.algorithm._run import Run
from agl_core.algorithm._utils import (
    LLMProxyLike,
    add_llm,
    batch_iter_over_dataset,
    with_llm_proxy,
    with_store,
)

__all__ = [
    "Algorithm",
    "BatchOutcome",
    "ComparisonOutcome",
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
    "comparable",
    "earned_reward",
    "show_progress",
    "with_llm_proxy",
    "with_store",
]
