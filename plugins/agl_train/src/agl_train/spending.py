"""Budgets of evaluations and promotions: tokens and money."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from agl_core.algorithm import RolloutOutcome
    from agl_core.types import Attributes, Span

__all__ = ["Spending"]

_MILLION: Final = 1_000_000
"""Tokens that a price is for, as providers give them."""
_INPUT: Final = "gen_ai.usage.input_tokens"
_OUTPUT: Final = "gen_ai.usage.output_tokens"


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
        """Add what a rollout used; a call that its client and a proxy both recorded counts once.

        Args:
            spans: The spans of one attempt.
        """
        from agl_adapters import calls_among, total_tokens

        found = list(spans)
        self._add(*total_tokens(calls_among(found)))
        for attributes in _other_usage(found):
            self._add(attributes.get(_INPUT), attributes.get(_OUTPUT))

    def _add(self, used_input: Any, used_output: Any) -> None:
        self.input += _tokens(used_input)
        self.output += _tokens(used_output)

    def as_json(self) -> dict[str, Any]:
        return {"input_tokens": self.input, "output_tokens": self.output, "cost": self.cost}


def _other_usage(spans: Sequence[Span]) -> list[Attributes]:
    """Return the attributes of spans that are no model calls and tell of tokens, as embeddings do.

    A span around others that tell of tokens is left out: it has their sum. So is one inside a model
    call, which has its tokens.
    """
    from agl_adapters import is_model_call

    by_id = {span.span_id: span for span in spans}
    calls = {span.span_id for span in spans if is_model_call(span.attributes)}
    told = [span for span in spans if span.span_id in calls or _tells(span)]
    outer = {span.span_id: _ancestors(span, by_id) for span in told}
    around = set[str]().union(*outer.values())
    return [
        span.attributes
        for span in told
        if span.span_id not in calls | around and not outer[span.span_id] & calls
    ]


def _tells(span: Span) -> bool:
    return _INPUT in span.attributes or _OUTPUT in span.attributes


def _ancestors(span: Span, by_id: Mapping[str, Span]) -> set[str]:
    found: set[str] = set()
    parent = by_id.get(span.parent_id or "")
    # Foreign spans may be their own ancestors.
    while parent is not None and parent.span_id not in found:
        found.add(parent.span_id)
        parent = by_id.get(parent.parent_id or "")
    return found - {span.span_id}


def _tokens(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
