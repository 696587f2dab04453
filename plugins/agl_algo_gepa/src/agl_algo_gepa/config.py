"""Configuration of GEPA."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agl_prompt_search import Price

__all__ = ["Acceptance", "GEPAConfig", "ModuleSelector", "Selection"]

Selection = Literal["pareto", "current_best", "epsilon_greedy", "top_k_pareto"]
ModuleSelector = Literal["round_robin", "all"]
Acceptance = Literal["strict_improvement", "improvement_or_equal"]


class GEPAConfig(BaseModel):
    """Options of ``algorithm.gepa``; the same as the arguments of :class:`~agl_algo_gepa.GEPA`."""

    model_config = ConfigDict(extra="forbid")

    async_openai_client: Any = None
    """Any OpenAI-compatible async client; None makes one from the environment."""
    reflection_model: str = Field(default="gpt-5-mini", min_length=1)
    """The model that reflects on runs and writes new prompts."""
    temperature: float = Field(default=1.0, ge=0)
    """Its temperature."""
    components: list[str] | None = Field(default=None, min_length=1)
    """Names of the prompts that evolve; None is all of the initial resources."""
    max_iterations: int = Field(default=50, ge=1)
    """Iterations."""
    proposals_per_iteration: int = Field(default=1, ge=1)
    """New candidates that an iteration makes side by side."""
    reflection_minibatch_size: int = Field(default=3, ge=1)
    """Training tasks that a candidate is compared with its parent on."""
    candidate_selection_strategy: Selection = "pareto"
    """Which candidates become parents."""
    module_selector: ModuleSelector = "round_robin"
    """Whether a new candidate changes one prompt, in turn, or all of them."""
    acceptance_criterion: Acceptance = "strict_improvement"
    """What a candidate must show on the minibatch before it is measured on the validation tasks."""
    perfect_score: float | None = 1.0
    """Reward that cannot be exceeded; None if there is none."""
    use_merge: bool = False
    """Whether prompts of two good candidates are combined, too."""
    max_merge_invocations: int = Field(default=5, ge=1)
    """Most of these combinations that are kept."""
    rollout_batch_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that one batch of rollouts may take."""
    seed: int | None = None
    """Makes a run repeatable, as far as agent and model are."""
    prompts_dir: str | None = None
    """A folder with your own question to the model."""
    max_rollouts: int | None = Field(default=None, ge=1)
    """Most rollouts; an iteration that may not fit is not begun."""
    max_calls: int | None = Field(default=None, ge=0)
    """Most calls of the model."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Tokens of the model, in and out, after which it stops."""
    max_cost: float | None = Field(default=None, ge=0)
    """Money spent on the model after which it stops; needs ``prices``."""
    prices: dict[str, Price] | None = None
    """What the model costs, by name."""
    call_timeout: float = Field(default=300.0, gt=0)
    """Seconds that an answer may take."""
    output_dir: str | None = None
    """A folder for the history and the learning curve; None writes no files."""
