"""Limits, prices, and what is charged."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.errors import ConfigError
from agl_prompt_search import Budget, ChatReply, MeteredModel, Price, Spending


def test_a_call_is_charged_by_its_model():
    budget = Budget(prices={"a": Price(input=2, output=8)})
    spent = Spending()
    budget.charge(spent, "a", ChatReply("", "", 1_000_000, 500_000))
    assert (spent.input_tokens, spent.output_tokens, spent.cost) == (1_000_000, 500_000, 6.0)
    budget.charge(spent, "unknown", ChatReply("", "", 5, 5))
    assert (spent.tokens, spent.cost) == (1_500_010, 6.0)


NONE: dict[str, Any] = dict.fromkeys(("rollouts", "calls", "tokens", "cost", "prices"))


@pytest.mark.parametrize(
    ("limit", "more", "reason"),
    [
        ({}, {"rollouts": 10**9, "calls": 10**9}, ""),
        ({"rollouts": 8}, {"rollouts": 3}, ""),
        ({"rollouts": 8}, {"rollouts": 4}, "4 more rollouts may exceed max_rollouts = 8"),
        ({"calls": 3}, {"calls": 1}, ""),
        ({"calls": 3}, {"calls": 2}, "max_calls = 3 are made"),
        ({"tokens": 31}, {}, ""),
        ({"tokens": 30}, {}, "max_tokens = 30 are used"),
        ({"cost": 0.5}, {}, "max_cost = 0.5 is spent"),
    ],
)
def test_a_limit_is_reported(limit: Any, more: Any, reason: str):
    spent = Spending(rollouts=5, calls=2, input_tokens=10, output_tokens=20, cost=0.5)
    assert Budget(**limit).exceeded_by(spent, **more) == reason


def test_a_cost_limit_needs_the_price_of_each_model():
    price = {"input": 1, "output": 2}
    with pytest.raises(ConfigError, match="max_cost needs the price of 'b'"):
        Budget.of("a", "b", **{**NONE, "cost": 1.0, "prices": {"a": price}})
    budget = Budget.of("a", **{**NONE, "cost": 1.0, "prices": {"a": price}})
    assert budget.prices == {"a": Price(input=1, output=2)}
    assert Budget.of("a", **NONE) == Budget()


class Client:
    """A client that has one answer and then none."""

    def __init__(self) -> None:
        self.chat = self.completions = self
        self.asked: list[dict[str, Any]] = []

    async def create(self, **request: Any) -> Any:
        self.asked.append(request)
        if len(self.asked) > 1:
            raise RuntimeError("enough")

        class Completion:
            content = "42"
            usage = None

        Completion.choices = [Completion]  # type: ignore[attr-defined]
        Completion.message = Completion  # type: ignore[attr-defined]
        return Completion


async def test_a_metered_model_counts_and_stops():
    client, spent = Client(), Spending()
    model = MeteredModel(client, Budget(calls=3), spent, temperature=0.5, timeout=5)
    assert model.limit() == ""
    assert (await model.ask("m", [], seed=7)).text == "42"
    assert (await model.ask("m", [])).problem == "RuntimeError: enough"
    model.recall("m", ChatReply("an old answer", "", 3, 4))
    assert model.limit() == "max_calls = 3 are made"
    assert [request.get("seed") for request in client.asked] == [7, None]
    assert (model.answers, model.failures) == (2, 1)
    assert (spent.calls, spent.tokens) == (3, 7)
