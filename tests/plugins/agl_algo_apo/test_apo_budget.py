"""Budgets: a search stops at its limits and keeps the best prompt so far."""

from __future__ import annotations

import asyncio

import pytest

from agl_algo_apo import APO, Price
from agl_core.errors import ConfigError


def latest_prompt(store):
    return asyncio.run(store.get_latest_resources()).resources["prompt"]


class TestRollouts:
    def test_a_round_that_may_not_fit_is_not_begun(self, make_apo, fit, store):
        # The seed: 8. A round at most: 4 proposals x (2 + 3), the beam's missing rows, and the
        # leader's 5 rows that are not in the batch.
        apo = make_apo(max_rollouts=8 + 4 * 5 + 5 - 1)
        fit(apo)
        assert apo.state.spent.rollouts == 8
        assert apo.state.stopped == "25 more rollouts may exceed max_rollouts = 32"
        assert latest_prompt(store) == apo.get_best_prompt()

    def test_what_fits_is_done(self, make_apo, fit):
        apo = make_apo(max_rollouts=8 + 4 * 5 + 5)
        fit(apo)
        assert apo.state.rounds == 1
        assert apo.state.spent.rollouts <= 33
        assert apo.state.stopped
        assert apo.state.best != "v0"

    def test_not_even_the_seed_fits(self, make_apo, fit, store):
        apo = make_apo(max_rollouts=7)
        fit(apo)
        assert apo.state.spent.rollouts == 0
        assert apo.get_best_prompt().template == "Answer {question} well"
        assert latest_prompt(store) == apo.get_best_prompt()


class TestCalls:
    @pytest.mark.parametrize(("limit", "made"), [(0, 0), (1, 0), (2, 2), (5, 4), (8, 8), (11, 10)])
    def test_no_more_calls_are_made(self, make_apo, fit, models, limit, made):
        apo = make_apo(max_calls=limit)
        fit(apo)
        assert len(models.requests) == apo.state.spent.calls == made
        assert len(apo.history) == 1 + made // 2
        assert not any(one.rejected for one in apo.history)
        assert apo.state.stopped or limit == 11
        assert (apo.state.best != "v0") == (made > 0)

    def test_tokens_end_it(self, make_apo, fit):
        apo = make_apo(max_tokens=10)
        fit(apo)
        assert apo.state.stopped == "max_tokens = 10 are used"
        assert apo.state.spent.tokens >= 10
        assert apo.state.rounds == 1

    def test_money_ends_it(self, make_apo, fit):
        price = {"input": 10.0, "output": 40.0}
        prices = {"gpt-5-mini": price, "gpt-4.1-mini": price}
        apo = make_apo(max_cost=0.001, prices=prices)
        fit(apo)
        spent = apo.state.spent
        assert apo.state.stopped == "max_cost = 0.001 is spent"
        assert spent.cost == pytest.approx(
            (10 * spent.input_tokens + 40 * spent.output_tokens) / 1e6
        )

    def test_a_cost_limit_needs_prices(self):
        with pytest.raises(ConfigError, match="max_cost needs the price of 'gpt-4"):
            APO(max_cost=1.0, prices={"gpt-5-mini": Price(input=1, output=1)})
