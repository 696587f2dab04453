"""Options of VERL beside verl's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig
from agl_credit import CreditConfig

__all__ = ["VERLConfig"]


class VERLConfig(ComponentConfig):
    """Options of :class:`~agl_algo_verl.VERL`."""

    config: Mapping[str, Any] = Field(default_factory=dict[str, Any], kw_only=False)
    """verl's own configuration: a table merged over its Hydra defaults. An unknown key is an error;
    ``+key`` or ``++key`` adds one, as on verl's command line."""
    config_name: str = Field(default="ppo_trainer", min_length=1)
    """verl's configuration that gives the defaults."""
    model_name: str | None = Field(default=None, min_length=1)
    """Name that agents call the model by; None is the last part of its path."""

    aggregation: Literal["transition", "trajectory"] = "transition"
    """Rows to train on: ``transition`` is one per model call, ``trajectory`` one per chain of calls
    that continue each other token by token."""
    credit: CreditConfig = CreditConfig()
    """How the reward is shared among the calls of a rollout: a type, or a table of it and options.
    ``group`` leaves the advantages to verl's ``algorithm.adv_estimator``."""
    advantage_level: Literal["rollout", "row"] = "rollout"
    """Unit that counts once in a group's mean reward: a rollout, or each of its rows."""
    loss_level: Literal["token", "rollout"] = "token"
    """Unit of equal weight in the loss: ``token`` leaves it to verl's ``loss_agg_mode``;
    ``rollout`` takes the mean over rollouts of each one's mean over tokens."""

    on_failed: Literal["retry", "drop", "penalise"] = "retry"
    """What to do with a rollout that failed, timed out, or has no rows to train on."""
    on_overlong: Literal["retry", "drop", "penalise"] = "drop"
    """What to do about rows over ``data.max_prompt_length`` or ``data.max_response_length``:
    ``retry`` the rollout, ``drop`` the rows, or truncate responses and ``penalise`` the rollout."""
    penalty: float | None = None
    """Reward of a penalised rollout; None: below the others of its group, or the lower end of the
    trainer's ``reward_range``."""
    missing_reward: float | None = None
    """Reward of a rollout without one; None counts it as failed."""
    max_retries: int = Field(default=2, ge=0)
    """Number of retries before a rollout is dropped."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer usable rollouts is dropped, and another task takes its place."""
    max_failed_groups: int = Field(default=64, ge=1)
    """Number of groups dropped in a row after which the run ends with an error."""

    rollout_timeout: float | None = Field(default=1200.0, gt=0)
    """Seconds for one attempt of a rollout; None is no limit."""
    drain_timeout: float = Field(default=60.0, ge=0)
    """Seconds for calls in flight to end before weights change; then they are aborted."""
    health_interval: float = Field(default=10.0, gt=0)
    """Seconds between two health checks of the rollout servers."""
    max_restarts: int = Field(default=2, ge=0)
    """Number of restarts, from the last checkpoint, after a trainer or a server died."""
