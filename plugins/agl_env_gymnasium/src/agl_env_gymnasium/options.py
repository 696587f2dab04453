"""Options of an environment: the table ``agent`` of a train file, without its type."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class GymnasiumOptions(BaseModel):
    """How an environment is made and played."""

    model_config = ConfigDict(extra="forbid")

    tasks: int = Field(default=64, ge=1)
    """Number of training tasks. A task is a seed: training has 0, 1, 2, …"""
    val_tasks: int = Field(default=16, ge=0)
    """Number of validation tasks; their seeds follow those of training."""
    make: dict[str, Any] = Field(default_factory=dict)
    """Arguments of ``gymnasium.make``, e.g. ``{ is_slippery = false }``."""
    actions: list[str] | None = None
    """Names of the actions of a discrete action space, in order; None: the model gives numbers."""
    max_turns: int = Field(default=32, ge=1)
    """Largest number of replies of the model per episode."""
    invalid_reward: float = 0.0
    """Reward of a reply without a valid action; the model is told which actions there are."""
    rules: str | None = None
    """The description of the environment for the model; None: Gymnasium's documentation of it."""
    prompt_template: bool = False
    """Whether the system prompt is the run's prompt template, which an algorithm may train; it is
    formatted with ``rules`` and ``format``. False: both texts, one after the other."""
