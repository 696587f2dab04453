"""Options of VERL: what is not verl's own."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["VERLConfig"]

Policy = Literal["retry", "drop", "penalise"]


class VERLConfig(BaseModel):
    """Options of ``algorithm.verl``; the same as the arguments of :class:`~agl_algo_verl.VERL`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: dict[str, Any] = Field(default_factory=dict)
    """verl's own configuration: what differs from its defaults."""
    config_name: str = Field(default="ppo_trainer", min_length=1)
    """Which of verl's configurations gives the defaults."""
    model_name: str | None = Field(default=None, min_length=1)
    """What agents call the model; None: the last part of its path."""

    aggregation: Literal["transition", "trajectory"] = "transition"
    """Rows to train on: one per model call, or one per chain of calls that continue each other."""
    advantage_level: Literal["rollout", "row"] = "rollout"
    """What counts once in a group's mean reward: a rollout, or each of its rows."""
    loss_level: Literal["token", "rollout"] = "token"
    """What weighs the same in the loss: tokens (verl's ``loss_agg_mode``), or rollouts."""

    on_failed: Policy = "retry"
    """What becomes of a rollout that failed, ran out of time, or has nothing to train on."""
    on_overlong: Policy = "drop"
    """What becomes of rows over ``data.max_prompt_length`` or ``data.max_response_length``."""
    penalty: float = 0.0
    """Reward of a rollout that is penalised."""
    missing_reward: float | None = 0.0
    """Reward of a rollout that gave none; None: it counts as failed."""
    max_retries: int = Field(default=2, ge=0)
    """How often a rollout is tried again before it is dropped."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer rollouts left is dropped as a whole, and another task takes its place."""
    max_failed_groups: int = Field(default=64, ge=1)
    """How many groups may be dropped in a row before the run is given up."""

    rollout_timeout: float | None = Field(default=1200.0, gt=0)
    """Seconds that one attempt of a rollout may take."""
    drain_timeout: float = Field(default=60.0, ge=0)
    """Seconds that calls in flight may take to end before weights change; then they are aborted."""
    health_interval: float = Field(default=10.0, gt=0)
    """Seconds between two looks at the rollout servers."""
    max_restarts: int = Field(default=2, ge=0)
    """How often a broken trainer or server is started again, from the last checkpoint."""
