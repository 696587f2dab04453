"""How much a search may use up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agl_algo_apo.config import Price
from agl_algo_apo.state import Spending
from agl_core.algorithm.chat import ChatReply
from agl_core.errors import ConfigError

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """Limits on what a search uses up; None is no limit.

    Rollouts and calls are checked before they are made, so these limits hold. What a call costs is
    known afterwards, so the calls under way when tokens or money run out may go beyond them.

    Attributes:
        rollouts: Of the agent.
        calls: Of the critic and the editor.
        tokens: Of these calls, in and out.
        cost: Of these calls.
        prices: By model.
    """

    rollouts: int | None = None
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)

    def check_prices(self, *models: str) -> None:
        """Insist on a price for each of these models if the cost is limited.

        Raises:
            ConfigError: One has none, so the limit would never be reached.
        """
        for model in models:
            if self.cost is not None and model not in self.prices:
                raise ConfigError(f"max_cost needs the price of {model!r}", path="prices")

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
