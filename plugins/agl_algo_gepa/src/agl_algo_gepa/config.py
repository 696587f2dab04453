"""Options of GEPA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from agl_prompt_search import Price, SearchConfig

__all__ = ["GEPAConfig", "Price"]


class GEPAConfig(SearchConfig):
    """Options of :class:`~agl_algo_gepa.GEPA`."""

    reflection_model: str = Field(default="gpt-5-mini", min_length=1)
    """Model that reflects on runs and writes new prompts."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature of this model."""
    components: Sequence[str] | None = Field(default=None, min_length=1)
    """Names of the prompts that evolve; None is all of the initial resources."""
    max_iterations: int = Field(default=50, ge=1)
    """Limit of iterations."""
    proposals_per_iteration: int = Field(default=1, ge=1)
    """Number of candidates that an iteration proposes concurrently."""
    reflection_minibatch_size: int = Field(default=3, ge=1)
    """Number of training tasks on which a candidate is compared with its parent."""
    candidate_selection_strategy: Literal[
        "pareto", "current_best", "epsilon_greedy", "top_k_pareto"
    ] = "pareto"
    """Which candidates become parents: those on the Pareto front, in proportion to the number of
    tasks on which they are best; the best one; the best one or sometimes any other; or those of the
    front among the best few."""
    module_selector: Literal["round_robin", "all"] = "round_robin"
    """Whether a new candidate changes one prompt, in turn, or all of them."""
    acceptance_criterion: Literal["strict_improvement", "improvement_or_equal"] = (
        "strict_improvement"
    )
    """Condition on the minibatch for measuring a candidate on the validation tasks."""
    perfect_score: float | Literal["auto"] | None = "auto"
    """Reward that cannot be exceeded. Minibatches with only such rewards are skipped, and the
    search ends when all validation tasks have it. auto: the upper end of the trainer's
    ``reward_range``, or else 1 until a higher reward is seen. None if there is no such reward."""
    use_merge: bool = False
    """Whether prompts of two good candidates are merged, too."""
    max_merge_invocations: int = Field(default=5, ge=1)
    """Limit of merges that are kept."""

    def models(self) -> Sequence[str]:
        return (self.reflection_model,)
