"""Says what a run would cost with a model that bills tokens, before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["GPT_4_1_MINI", "Price", "describe_cost"]

# Means over the 720 rollouts of a run with the default options, of which each makes two calls. A
# model that thinks before it answers writes more.
_INPUT_PER_ROLLOUT: Final = 1020
_OUTPUT_PER_ROLLOUT: Final = 62
_SEARCH_SHARE: Final = 1.07
"""Tokens of all calls by those of the rollouts; the others are those of critic and editor."""
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Price:
    """The price of a model, in dollars per million tokens."""

    input: float
    output: float


GPT_4_1_MINI: Final = Price(0.40, 1.60)
"""List price of the default model (https://openai.com/api/pricing); --price gives another."""


def describe_cost(rollouts: int, held_out: int, price: Price) -> str:
    """Return the tokens and the cost of a run that uses its whole budget, as one line.

    Args:
        rollouts: Budget of the search.
        held_out: Tasks of the final measurement, which two prompts are measured on.
        price: Of the model.
    """
    count = rollouts + 2 * held_out
    tokens_in = count * _INPUT_PER_ROLLOUT * _SEARCH_SHARE
    tokens_out = count * _OUTPUT_PER_ROLLOUT * _SEARCH_SHARE
    cost = (tokens_in * price.input + tokens_out * price.output) / _MILLION
    return (
        f"about ${cost:.2f} for at most {count:,} rollouts ({tokens_in / _MILLION:.2f} million "
        f"input and {tokens_out / _MILLION:.2f} million output tokens, at ${price.input:g} and "
        f"${price.output:g} per million, see --price), more if it thinks before it answers"
    )
