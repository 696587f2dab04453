"""Options of APO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import AliasChoices, Field, SkipValidation, model_validator

from agl_core.plugins import ComponentConfig
from agl_prompt_search import Budget, ChatClient, Price

__all__ = ["APOConfig"]


class APOConfig(ComponentConfig):
    """Options of :class:`~agl_algo_apo.APO`."""

    async_openai_client: SkipValidation[ChatClient | None] = Field(
        default=None, exclude=True, kw_only=False
    )
    """Any OpenAI-compatible async client; None makes an ``openai.AsyncOpenAI`` from the environment
    when the run starts."""
    gradient_model: str = Field(default="gpt-5-mini", min_length=1)
    """Model that criticises prompts."""
    apply_edit_model: str = Field(default="gpt-4.1-mini", min_length=1)
    """Model that edits prompts."""
    diversity_temperature: float = Field(default=1.0, ge=0)
    """Temperature of both models."""
    gradient_batch_size: int = Field(default=4, ge=1)
    """Number of training tasks that are run for one critique."""
    val_batch_size: int = Field(default=16, ge=1)
    """Number of validation tasks on which all candidates of a round are scored."""
    beam_width: int = Field(default=4, ge=1)
    """Number of prompts that a round keeps, and that it edits; a shorter beam is repeated."""
    branch_factor: int = Field(default=4, ge=1)
    """Number of edits of each of these prompts."""
    beam_rounds: int = Field(default=3, ge=1)
    """Number of rounds."""
    rollout_batch_timeout: float = Field(default=3600.0, gt=0)
    """Seconds for one batch of rollouts; unfinished rollouts are cancelled. Concurrent batches get
    a multiple of it."""
    run_initial_validation: bool = True
    """Whether the seed prompt is measured on all validation tasks first."""
    seed: int | None = None
    """Makes a run repeatable, as far as agent and models are. Requests then carry a seed, too."""
    what_if: int = Field(default=0, ge=0)
    """Number of changes of the prompt that the gradient model may try before each answer, on runs
    that it sees and from a turn on; needs agl-replay."""
    what_if_samples: int = Field(default=2, ge=1)
    """Number of continuations of a run with the changed prompt, and as many with its own."""
    prompts_dir: str | Path | None = None
    """Folder with prompt files for critiques and edits that replace the packaged ones."""
    max_rollouts: int | None = Field(default=None, ge=1)
    """Limit of rollouts; a round that may exceed it is not started."""
    max_calls: int | None = Field(default=None, ge=0)
    """Limit of calls of the two models."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Input and output tokens of the two models after which the search stops."""
    max_cost: float | None = Field(default=None, ge=0)
    """Cost of the two models after which the search stops; needs ``prices``."""
    prices: Mapping[str, Price] | None = None
    """Price of each model, by name."""
    call_timeout: float = Field(default=300.0, gt=0)
    """Seconds for one critique or edit."""
    output_dir: str | Path | None = None
    """Folder for ``history.csv``, ``curve.csv`` and ``curve.png``; None writes no files."""

    @property
    def proposals_per_round(self) -> int:
        """Number of proposals in a round."""
        return self.beam_width * self.branch_factor

    @property
    def calls_per_proposal(self) -> int:
        """Largest number of calls for a proposal."""
        return 2 + self.what_if

    @property
    def forks_per_proposal(self) -> int:
        """Largest number of rollouts for the questions of a proposal."""
        return self.what_if * 2 * self.what_if_samples

    def budget(self) -> Budget:
        """Return the limits.

        Raises:
            ConfigError: The cost is limited, but a model's price is missing.
        """
        return Budget.of(
            self.gradient_model,
            self.apply_edit_model,
            rollouts=self.max_rollouts,
            calls=self.max_calls,
            tokens=self.max_tokens,
            cost=self.max_cost,
            prices=self.prices,
        )

    poml_trace: bool = Field(
        default=False, validation_alias=AliasChoices("poml_trace", "_poml_trace"), exclude=True
    )
    """Without effect: no prompt is written in POML. ``_poml_trace`` is its name in agent-lightning
    0.3, whose first tutorial sets it."""

    @model_validator(mode="after")
    def _check_prices(self) -> APOConfig:
        self.budget()
        return self
