"""Budgets of evaluations and promotions: tokens and money."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from agl_core.algorithm import RolloutOutcome
    from agl_core.types import Span

__all__ = ["Spending"]

_MILLION = 1_000_000
_INPUT, _OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"


class Spending:
    """Adds up what rollouts used, as their spans say.

    Args:
        max_tokens: Input and output tokens after which no more may be used; None for no limit.
        max_cost: Cost after which no more may be spent; None for no limit.
        price: Cost of a million input tokens and of a million output tokens.

    Raises:
        ConfigError: The cost is limited, but there is no price.
    """

    def __init__(
        self, max_tokens: int | None, max_cost: float | None, price: tuple[float, float] | None
    ) -> None:
        if max_cost is not None and price is None:
            raise ConfigError("a limit of the cost needs --price", path="--max-cost")
        self._max_tokens, self._max_cost, self._price = max_tokens, max_cost, price
        self.input = self.output = 0
        self.is_spent = False
        """Whether a limit was reached."""

    @property
    def cost(self) -> float | None:
        """The cost so far; None without a price."""
        if self._price is None:
            return None
        of_input, of_output = self._price
        return (self.input * of_input + self.output * of_output) / _MILLION

    def add(self, outcomes: Sequence[RolloutOutcome]) -> bool:
        """Add what rollouts used; return whether a limit is reached."""
        for outcome in outcomes:
            self.count(outcome.spans)
        tokens, cost = self.input + self.output, self.cost
        self.is_spent = (self._max_tokens is not None and tokens >= self._max_tokens) or (
            self._max_cost is not None and cost is not None and cost >= self._max_cost
        )
        return self.is_spent

    def count(self, spans: Iterable[Span]) -> None:
        """Add what a rollout used."""
        for span in spans:
            self.input += _tokens(span.attributes.get(_INPUT))
            self.output += _tokens(span.attributes.get(_OUTPUT))

    def as_json(self) -> dict[str, Any]:
        return {"input_tokens": self.input, "output_tokens": self.output, "cost": self.cost}


def _tokens(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
