"""How much a search may use up, and what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agl_core.algorithm import ChatReply
from agl_core.errors import ConfigError

__all__ = ["Budget", "Price", "Spending"]


class Price(BaseModel):
    """What a model costs, in money per million tokens."""

    model_config = ConfigDict(extra="forbid")

    input: float = Field(ge=0)
    output: float = Field(ge=0)


class Spending(BaseModel):
    """What a search has used up.

    Attributes:
        rollouts: Rollouts of the agent.
        calls: Calls of the models that the search asks.
        input_tokens: Tokens of these calls, in.
        output_tokens: Tokens of these calls, out.
        cost: What these calls cost, as far as prices were given.
    """

    rollouts: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Budget:
    """Limits on what a search uses up; None is no limit.

    Rollouts and calls are checked before they are made, so these limits hold. What a call costs is
    known afterwards, so the calls under way when tokens or money run out may go beyond them.

    Attributes:
        rollouts: Of the agent.
        calls: Of the models that the search asks.
        tokens: Of these calls, in and out.
        cost: Of these calls.
        prices: By model.
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
        """Make a budget of what a user gave.

        Args:
            *models: What the search will ask.
            rollouts: See the class.
            calls: See the class.
            tokens: See the class.
            cost: See the class; needs the price of each of the models.
            prices: A :class:`Price`, or a dict with its fields, by model.

        Raises:
            ConfigError: The cost is limited and a price is missing, so that it would not be known.
        """
        known = {name: Price.model_validate(price) for name, price in (prices or {}).items()}
        for model in models:
            if cost is not None and model not in known:
                raise ConfigError(f"max_cost needs the price of {model!r}", path="prices")
        return cls(rollouts, calls, tokens, cost, known)

    def exceeded_by(self, spent: Spending, *, rollouts: int = 0, calls: int = 0) -> str:
        """Tell which limit forbids that many more rollouts and calls; empty if none does."""
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
        """Add what an answer took."""
        spent.input_tokens += reply.input_tokens
        spent.output_tokens += reply.output_tokens
        if price := self.prices.get(model):
            tokens = reply.input_tokens * price.input + reply.output_tokens * price.output
            spent.cost += tokens / 1e6
