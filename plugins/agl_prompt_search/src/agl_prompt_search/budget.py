"""Limits and spending of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agl_core.errors import ConfigError
from agl_prompt_search.chat import ChatReply

__all__ = ["Budget", "Price", "Spending"]


class Price(BaseModel):
    """Price of a model, in money per million tokens."""

    model_config = ConfigDict(extra="forbid")

    input: float = Field(ge=0)
    output: float = Field(ge=0)


class Spending(BaseModel):
    """Rollouts, calls, tokens and money that a search has spent.

    Attributes:
        rollouts: Rollouts of the agent.
        calls: Calls that the search made to its own models.
        input_tokens: Input tokens of these calls.
        output_tokens: Output tokens of these calls.
        cost: Cost of these calls, for models whose price is known.
    """

    rollouts: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Budget:
    """Limits of a search; None is no limit.

    Rollouts and calls are checked before they start, so these limits are exact. The tokens and the
    cost of a call are known only afterwards, so calls in flight may exceed these limits.

    Attributes:
        rollouts: Limit of the agent's rollouts.
        calls: Limit of the search's own model calls.
        tokens: Limit of input and output tokens of these calls.
        cost: Limit of the cost of these calls.
        prices: Price by model.
    """

    rollouts: int | None = None
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])

    @classmethod
    def of(
        cls,
        *models: str,
        rollouts: int | None,
        calls: int | None,
        tokens: int | None,
        cost: float | None,
        prices: Mapping[str, Any] | None,
    ) -> Budget:
        """Return the budget for a user's options.

        Args:
            *models: Models that the search will call.
            rollouts: See the class.
            calls: See the class.
            tokens: See the class.
            cost: See the class; needs the price of every model.
            prices: A :class:`Price`, or a dict with its fields, by model.

        Raises:
            ConfigError: The cost is limited, but a model's price is missing.
        """
        known = {name: Price.model_validate(price) for name, price in (prices or {}).items()}
        for model in models:
            if cost is not None and model not in known:
                raise ConfigError(f"max_cost needs the price of {model!r}", path="prices")
        return cls(rollouts, calls, tokens, cost, known)

    def exceeded_by(self, spent: Spending, *, rollouts: int = 0, calls: int = 0) -> str:
        """Return the limit that forbids so many more rollouts and calls; empty if none does."""
        if self.rollouts is not None and spent.rollouts + rollouts > self.rollouts:
            return f"{rollouts} more rollouts may exceed max_rollouts = {self.rollouts}"
        if self.calls is not None and spent.calls + calls > self.calls:
            return f"max_calls = {self.calls} are made"
        if self.tokens is not None and spent.tokens >= self.tokens:
            return f"max_tokens = {self.tokens} are used"
        if self.cost is not None and spent.cost >= self.cost:
            return f"max_cost = {self.cost:g} is spent"
        return ""

    def charge(self, spent: Spending, model: str, reply: ChatReply) -> None:
        """Add the tokens and the cost of a call."""
        spent.input_tokens += reply.input_tokens
        spent.output_tokens += reply.output_tokens
        if price := self.prices.get(model):
            tokens = reply.input_tokens * price.input + reply.output_tokens * price.output
            spent.cost += tokens / 1e6
