"""Algorithms: what gives out tasks, reads what came of them, and improves a resource."""

from agl_core.algorithm.base import Algorithm
from agl_core.algorithm.baseline import Baseline
from agl_core.algorithm.batch import BatchOutcome, RolloutOutcome, cancel_rollouts, run_batch
from agl_core.algorithm.evaluation import Evaluation
from agl_core.algorithm.fast import FastAlgorithm
from agl_core.algorithm.functional import FunctionalAlgorithm, algo
from agl_core.algorithm.progress import show_progress
from agl_core.algorithm.run import Run, count_rollouts, stored_runs
from agl_core.algorithm.stats import Estimate, estimate_mean
from agl_core.algorithm.utils import (
    LLMProxyLike,
    batch_iter_over_dataset,
    with_llm_proxy,
    with_store,
)

__all__ = [
    "Algorithm",
    "Baseline",
    "BatchOutcome",
    "Estimate",
    "Evaluation",
    "FastAlgorithm",
    "FunctionalAlgorithm",
    "LLMProxyLike",
    "RolloutOutcome",
    "Run",
    "algo",
    "batch_iter_over_dataset",
    "cancel_rollouts",
    "count_rollouts",
    "estimate_mean",
    "run_batch",
    "show_progress",
    "stored_runs",
    "with_llm_proxy",
    "with_store",
]
