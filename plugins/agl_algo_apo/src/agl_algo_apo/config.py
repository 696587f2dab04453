"""Configuration of APO."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agl_prompt_search import Price

__all__ = ["APOConfig"]


class APOConfig(BaseModel):
    """Options of ``algorithm.apo``; the same as the arguments of :class:`~agl_algo_apo.APO`."""

    model_config = ConfigDict(extra="forbid")

    async_openai_client: Any = None
    """Any OpenAI-compatible async client; None makes one from the environment."""
    gradient_model: str = Field(default="gpt-5-mini", min_length=1)
    """The model that criticises."""
    apply_edit_model: str = Field(default="gpt-4.1-mini", min_length=1)
    """The model that edits."""
    diversity_temperature: float = Field(default=1.0, ge=0)
    """Temperature of both."""
    gradient_batch_size: int = Field(default=4, ge=1)
    """Training tasks that are run for a critique."""
    val_batch_size: int = Field(default=16, ge=1)
    """Validation tasks that all candidates of a round are scored on."""
    beam_width: int = Field(default=4, ge=1)
    """Prompts that survive a round, and prompts that a round edits."""
    branch_factor: int = Field(default=4, ge=1)
    """Edits of each of them."""
    beam_rounds: int = Field(default=3, ge=1)
    """Rounds."""
    rollout_batch_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that one batch of rollouts may take."""
    run_initial_validation: bool = True
    """Whether the seed prompt is measured on all validation tasks first."""
    seed: int | None = None
    """Makes a run repeatable, as far as agent and models are."""
    prompts_dir: str | None = None
    """A folder with prompts of your own for critiques and edits."""
    max_rollouts: int | None = Field(default=None, ge=1)
    """Most rollouts; a round that may not fit is not begun."""
    max_calls: int | None = Field(default=None, ge=0)
    """Most calls of the two models."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Tokens of the two models, in and out, after which it stops."""
    max_cost: float | None = Field(default=None, ge=0)
    """Money spent on the two models after which it stops; needs ``prices``."""
    prices: dict[str, Price] | None = None
    """What the models cost, by name."""
    call_timeout: float = Field(default=300.0, gt=0)
    """Seconds that a critique or an edit may take."""
    output_dir: str | None = None
    """A folder for the history and the learning curve; None writes no files."""
