"""Options that every search for prompts has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, SkipValidation, model_validator

from agl_core.plugins import ComponentConfig
from agl_prompt_search.budget import Budget, Price
from agl_prompt_search.chat import ChatClient

__all__ = ["SearchConfig"]


class SearchConfig(ComponentConfig):
    """Options of a search: its client, its limits, its files. A subclass names its models."""

    async_openai_client: SkipValidation[ChatClient | None] = Field(
        default=None, exclude=True, kw_only=False
    )
    """Any OpenAI-compatible async client; None makes an ``openai.AsyncOpenAI`` from the environment
    when the run starts."""
    rollout_batch_timeout: float = Field(default=3600.0, gt=0)
    """Seconds for one batch of rollouts; unfinished rollouts are cancelled and count as failures.
    Concurrent batches get a multiple of it."""
    seed: int | None = None
    """Makes a run repeatable, as far as agent and model are. Requests then carry a seed, too."""
    what_if: int = Field(default=0, ge=0)
    """Number of changes of the prompt that the model may try before each answer, on runs that it
    sees and from a turn on; needs agl-replay."""
    what_if_samples: int = Field(default=2, ge=1)
    """Number of continuations of a run with the changed prompt, and as many with its own."""
    prompts_dir: str | Path | None = None
    """Folder with prompt files that replace the packaged ones."""
    max_rollouts: int | None = Field(default=None, ge=1)
    """Limit of rollouts; a round or iteration that may exceed it is not started."""
    max_calls: int | None = Field(default=None, ge=0)
    """Limit of calls of the search's models."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Input and output tokens of these models after which the search stops."""
    max_cost: float | None = Field(default=None, ge=0)
    """Cost of these models after which the search stops; needs ``prices``."""
    prices: Mapping[str, Price] | None = None
    """Price of each model, by name."""
    call_timeout: float = Field(default=300.0, gt=0)
    """Seconds for one call of a model."""
    output_dir: str | Path | None = None
    """Folder for ``history.csv``, ``curve.csv`` and ``curve.png``; None writes no files."""

    def models(self) -> Sequence[str]:
        """Return the names of the models that the search calls."""
        raise NotImplementedError

    def budget(self) -> Budget:
        """Return the limits.

        Raises:
            ConfigError: The cost is limited, but a model's price is missing.
        """
        return Budget.of(
            *self.models(),
            rollouts=self.max_rollouts,
            calls=self.max_calls,
            tokens=self.max_tokens,
            cost=self.max_cost,
            prices=self.prices,
        )

    @model_validator(mode="after")
    def _check_prices(self) -> Self:
        self.budget()
        return self
