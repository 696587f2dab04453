"""Options of an environment: the table ``agent`` of a train file, without its type."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class OpenEnvOptions(BaseModel):
    """How a server is reached and its environment is played."""

    model_config = ConfigDict(extra="forbid")

    tasks: int = Field(default=64, ge=1)
    """Number of training tasks. A task is a seed: training has 0, 1, 2, …"""
    val_tasks: int = Field(default=16, ge=0)
    """Number of validation tasks; their seeds follow those of training."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """Arguments of every reset, e.g. ``{ difficulty = "hard" }``; those of a task come first."""
    action_key: str | None = None
    """Field of the action that the model's answer fills. None: the only field that the server's
    schema requires, or else the answer is the whole action as JSON."""
    action_json: bool = False
    """Whether the answer is always the whole action as JSON."""
    action_fields: dict[str, Any] = Field(default_factory=dict)
    """Fields that every action has besides."""
    observation_key: str | None = None
    """Field of the observation that the model sees. None: the whole observation as JSON without its
    ``metadata``; if only one text field is left, its text."""
    max_turns: int = Field(default=32, ge=1)
    """Largest number of replies of the model per episode."""
    reward: Literal["sum", "last"] = "sum"
    """Reward of an episode: the sum of the rewards of its steps, or that of its last step."""
    invalid_reward: float = 0.0
    """Added for each reply without a valid action; the model is told which actions there are."""
    rules: str | None = None
    """Text for the model about the environment; None: the description that the server gives."""
    prompt_template: bool = False
    """Whether the system prompt is the run's prompt template, which an algorithm may train; it is
    formatted with ``rules`` and ``format``. False: both texts, one after the other."""
    headers: dict[str, str] = Field(default_factory=dict)
    """HTTP headers of every connection, e.g. ``Authorization`` for a private server."""
    timeout: float = Field(default=60.0, gt=0)
    """Longest time in seconds that the server may take to answer."""
