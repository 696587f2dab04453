"""Options of credit by turn, the same in every algorithm."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["CreditConfig"]


class CreditConfig(BaseModel):
    """How the reward of a rollout is shared among its model calls; see ``agl_credit``.

    A text is its ``type``: ``credit="rtmc"``.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal[
        "group", "discounted", "leave-one-turn-out", "tempo", "rtmc", "agents", "forked"
    ] = "group"
    """group: all calls get the rollout's advantage (GRPO). discounted: the discounted return from
    the call on, relative to that call of the group. leave-one-turn-out: the same, relative to the
    other rollouts. tempo: the change of the value of shared prefixes is added (arXiv 2509.18314).
    rtmc: Q - V of shared states (arXiv 2604.11037). agents: each agent has its own number of the
    reward. forked: rollouts fork at some calls (VinePPO, arXiv 2410.01679) into trees whose
    branches all train (Tree-GRPO, arXiv 2509.21240)."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Factor by which a reward counts less one call earlier; discounted and leave-one-turn-out."""
    forks: int | None = Field(default=None, ge=1)
    """Limit of the calls of a group that are forked; None: the number of its rollouts."""
    samples: int = Field(default=1, ge=1)
    """Number of forks of each of these calls."""
    choose: Literal["entropy", "spread", "uniform"] = "entropy"
    """Calls to fork are drawn in proportion to the entropy of such calls of the other rollouts
    (entropy), to the spread of their advantages in earlier steps (spread), or evenly (uniform),
    always divided by the tokens from there to the end."""

    @model_validator(mode="before")
    @classmethod
    def _read_type(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value
