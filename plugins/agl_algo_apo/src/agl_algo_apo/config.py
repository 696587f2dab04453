"""Options of APO."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import AliasChoices, Field

from agl_prompt_search import Price, SearchConfig

__all__ = ["APOConfig", "Price"]


class APOConfig(SearchConfig):
    """Options of :class:`~agl_algo_apo.APO`."""

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
    run_initial_validation: bool = True
    """Whether the seed prompt is measured on all validation tasks first."""
    poml_trace: bool = Field(
        default=False, validation_alias=AliasChoices("poml_trace", "_poml_trace"), exclude=True
    )
    """Without effect: no prompt is written in POML. ``_poml_trace`` is its name in agent-lightning
    0.3, whose first tutorial sets it."""

    def models(self) -> Sequence[str]:
        return self.gradient_model, self.apply_edit_model

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
