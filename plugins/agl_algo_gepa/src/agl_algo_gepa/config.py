"""Options of GEPA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, SkipValidation, model_validator

from agl_core.plugins import ComponentConfig
from agl_prompt_search import Budget, ChatClient, Price

__all__ = ["GEPAConfig"]


class GEPAConfig(ComponentConfig):
    """Options of :class:`~agl_algo_gepa.GEPA`."""

    async_openai_client: SkipValidation[ChatClient | None] = Field(
        default=None, exclude=True, kw_only=False
    )
    """Any OpenAI-compatible async client; None makes an ``openai.AsyncOpenAI`` from the environment
    when the run starts."""
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
    rollout_batch_timeout: float = Field(default=3600.0, gt=0)
    """Seconds for one batch of rollouts; unfinished rollouts are cancelled and count as failures.
    Concurrent batches get a multiple of it."""
    seed: int | None = None
    """Makes a run repeatable, as far as agent and model are. Requests then carry a seed, too."""
    what_if: int = Field(default=0, ge=0)
    """Number of changes of the prompt that the reflection model may try before each answer, on runs
    that it sees and from a turn on; needs agl-replay."""
    what_if_samples: int = Field(default=2, ge=1)
    """Number of continuations of a run with the changed prompt, and as many with its own."""
    prompts_dir: str | Path | None = None
    """Folder with prompt files, ``reflect*.jinja``, that replace the packaged one."""
    max_rollouts: int | None = Field(default=None, ge=1)
    """Limit of rollouts; an iteration that may exceed it is not started."""
    max_calls: int | None = Field(default=None, ge=0)
    """Limit of calls of the model."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Input and output tokens of the model after which the search stops."""
    max_cost: float | None = Field(default=None, ge=0)
    """Cost of the model after which the search stops; needs ``prices``."""
    prices: Mapping[str, Price] | None = None
    """Price of the model, by name."""
    call_timeout: float = Field(default=300.0, gt=0)
    """Seconds for one call of the model."""
    output_dir: str | Path | None = None
    """Folder for ``history.csv``, ``curve.csv`` and ``curve.png``; None writes no files."""

    def budget(self) -> Budget:
        """Return the limits.

        Raises:
            ConfigError: The cost is limited, but the model's price is missing.
        """
        return Budget.of(
            self.reflection_model,
            rollouts=self.max_rollouts,
            calls=self.max_calls,
            tokens=self.max_tokens,
            cost=self.max_cost,
            prices=self.prices,
        )

    @model_validator(mode="after")
    def _check_prices(self) -> GEPAConfig:
        self.budget()
        return self
