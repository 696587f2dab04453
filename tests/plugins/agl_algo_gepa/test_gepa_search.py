"""The search of GEPA on an agent with two prompts, and its final resources in the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from agl_algo_gepa import GEPA
from agl_core.agent import LitAgent
from agl_core.errors import ConfigError
from agl_core.types import PromptTemplate

MERGING: dict[str, Any] = {
    "use_merge": True,
    "proposals_per_iteration": 2,
    "max_iterations": 20,
    "reflection_minibatch_size": 12,
    "perfect_score": None,
}


def latest(store: Any) -> Any:
    return asyncio.run(store.get_latest_resources()).resources


def rollouts(store: Any) -> list[Any]:
    return list(asyncio.run(store.query_rollouts()))


class TestSearch:
    def test_both_prompts_get_better_together_and_go_back_to_the_store(self, fit, store):
        gepa = fit(max_iterations=60)
        first, best = gepa.history[0], gepa.state.candidate(gepa.state.best)
        assert first.score().mean == pytest.approx(1 / 3)
        assert best.score().mean == 1.0
        assert all("+" in text for text in best.prompts.values())
        assert gepa.state.stopped == f"{best.version} solves every validation task"
        found = latest(store)
        assert {name: found[name] for name in ("plan", "answer")} == gepa.get_best_prompts()
        assert found["llm"].model == "none", "what else the agent needs comes along"

    def test_a_candidate_runs_once_on_each_task(self, fit, store):
        gepa = fit(max_iterations=30)
        made = Counter((one.resources_id, one.mode, one.input) for one in rollouts(store))
        assert set(made.values()) == {1}
        assert sum(made.values()) == gepa.state.spent.rollouts

    def test_the_history_tells_where_each_candidate_comes_from(self, fit):
        gepa = fit()
        assert [one.version for one in gepa.history] == [f"v{n}" for n in range(len(gepa.history))]
        for one in gepa.history[1:]:
            parent = gepa.state.candidate(one.parent)
            changed = [name for name in one.prompts if one.prompts[name] != parent.prompts[name]]
            assert len(changed) == 1, "one prompt in turn"
            assert bool(one.rewards) == (not one.rejected)
            if one.outclassed:
                assert "training tasks, not more than its parent's" in one.rejected
        assert {one.rejected != "" for one in gepa.history} == {True, False}

    def test_all_prompts_may_change_at_once(self, fit):
        gepa = fit(module_selector="all", max_iterations=4)
        assert gepa.state.spent.calls == 2 * (len(gepa.history) - 1) > 0
        one = gepa.history[1]
        assert all(one.prompts[name] != gepa.history[0].prompts[name] for name in one.prompts)

    def test_only_the_components_named_evolve(self, fit, store):
        gepa = fit(components=["answer"])
        assert set(gepa.history[-1].prompts) == {"answer"}
        assert latest(store)["plan"].template == "Plan {question}"
        with pytest.raises(ConfigError, match="'llm' is not one of the prompt templates"):
            fit(components=["llm"])

    def test_candidates_are_made_side_by_side(self, fit):
        gepa = fit(proposals_per_iteration=3, max_iterations=3, perfect_score=None)
        assert Counter(one.round for one in gepa.history[1:])[1] == 3

    def test_good_candidates_are_combined(self, fit):
        gepa = fit(**MERGING)
        combined = [one for one in gepa.history if "+" in (one.parent or "")]
        assert combined
        for one in combined:
            parents = [gepa.state.candidate(version) for version in one.parent.split("+")]
            for name, text in one.prompts.items():
                assert text in {parent.prompts[name] for parent in parents}

    def test_what_the_library_cannot_combine_does_not_end_the_run(self, fit, counting, caplog):
        class Strict(counting):
            def rollout(self, task: int, resources: Any, rollout: Any) -> float:
                return super().rollout(task + 1 if task % 3 == 0 else task, resources, rollout)

        gepa = fit(agent=Strict(), **MERGING)
        assert gepa.history[0].score().mean == 0.0
        assert gepa.state.rounds == 20
        assert "failed: Total of weights must be greater than zero" in caplog.text

    @pytest.mark.parametrize(
        "strategy", ["pareto", "current_best", "epsilon_greedy", "top_k_pareto"]
    )
    def test_each_way_to_choose_parents_works(self, fit, strategy):
        gepa = fit(candidate_selection_strategy=strategy, max_iterations=20)
        assert gepa.state.candidate(gepa.state.best).score().mean > 0.5

    def test_the_same_seed_takes_the_same_way(self, fit):
        options = {"use_merge": True, "proposals_per_iteration": 2}
        one, two = fit(**options), fit(**options)
        assert one.state.model_dump() == two.state.model_dump()
        assert one.state.history != fit(**options, seed=2).state.history

    def test_an_outclassed_edit_may_be_proposed_again(self, fit):
        texts = ["Answer {question} +", "Plan {question} +"]

        def few(request: Any) -> str:
            return texts["Plan" in request["messages"][-1]["content"].split("<other")[0]]

        gepa = fit(few, max_iterations=20)
        again = [one for one in gepa.history if one.repeats]
        assert again
        assert all(one.rejected.endswith("which gets another chance") for one in again)
        assert gepa.state.best != "v0"


class TestQuestions:
    def test_the_model_sees_runs_feedback_and_the_other_prompts(self, fit):
        asked: list[str] = []

        def keep(request: Any) -> str:
            asked.append(request["messages"][-1]["content"])
            assert request["model"] == "gpt-5-mini"
            assert request["temperature"] == 1.0
            return "no placeholders"

        fit(keep, max_iterations=2, fails="GEPA got no usable prompt")
        assert asked[0].count("<run ") == 2
        assert 'reward="0.0"' in asked[0]
        assert '<other name="answer">\nAnswer {question}\n</other>' in asked[0]
        assert 'which the agent knows as "plan"' in asked[0]

    def test_a_question_of_ones_own(self, fit, tmp_path):
        (tmp_path / "reflect.jinja").write_text("[user]\nMend {{ name }}!\n{{ prompt_template }}")
        asked: list[Any] = []

        def keep(request: Any) -> str:
            asked.append(request["messages"])
            return ""

        fit(
            keep,
            prompts_dir=tmp_path,
            max_iterations=1,
            perfect_score=None,
            fails="GEPA got no usable prompt",
        )
        assert asked == [[{"role": "user", "content": "Mend plan!\nPlan {question}"}]]

    def test_a_folder_without_it_is_a_mistake(self, tmp_path):
        with pytest.raises(ConfigError, match=r"has no reflect\*\.jinja"):
            GEPA(prompts_dir=tmp_path)


class TestBudgets:
    @pytest.mark.parametrize("limit", [6, 15, 16, 40, 77])
    def test_rollouts_stay_within_it(self, fit, store, limit):
        gepa = fit(max_rollouts=limit, max_iterations=100, perfect_score=None)
        assert gepa.state.spent.rollouts == len(rollouts(store)) <= limit
        assert gepa.state.stopped == f"10 more rollouts may exceed max_rollouts = {limit}"
        assert latest(store)["plan"] == gepa.get_best_prompts()["plan"]

    def test_not_even_the_seed_fits(self, fit, store):
        gepa = fit(max_rollouts=5)
        assert gepa.state.stopped == "6 more rollouts may exceed max_rollouts = 5"
        assert rollouts(store) == []
        assert gepa.state.best == "v0"

    @pytest.mark.parametrize(("limit", "selector", "made"), [(0, "all", 0), (5, "all", 4)])
    def test_calls_stay_within_it(self, fit, limit, selector, made):
        gepa = fit(max_calls=limit, module_selector=selector, perfect_score=None)
        assert gepa.state.spent.calls == made
        assert gepa.state.stopped == f"max_calls = {limit} are made"

    def test_tokens_end_it(self, fit):
        gepa = fit(max_tokens=100, perfect_score=None)
        assert gepa.state.spent.tokens == 120
        assert gepa.state.stopped == "max_tokens = 100 are used"

    def test_money_ends_it(self, fit):
        prices = {"gpt-5-mini": {"input": 1.0, "output": 10.0}}
        gepa = fit(max_cost=2.5e-4, prices=prices, perfect_score=None)
        assert gepa.state.spent.cost == pytest.approx(2 * (30 * 1 + 10 * 10) / 1e6)
        assert gepa.state.stopped == "max_cost = 0.00025 is spent"
        with pytest.raises(ConfigError, match="max_cost needs the price of 'gpt-5-mini'"):
            GEPA(max_cost=1.0)

    def test_iterations_end_it(self, fit):
        gepa = fit(max_iterations=3, perfect_score=None)
        assert gepa.state.rounds == 3
        assert gepa.state.stopped == ""
        assert [point.round for point in gepa.state.curve] == [0, 1, 2, 3]


def test_files_and_figures(fit, tmp_path):
    gepa = fit(output_dir=tmp_path)
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert lines[0].endswith(",rejected,critique,plan,answer")
    assert len(lines) == 1 + len(gepa.history)
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 1 + len(gepa.state.curve)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_jinja_prompt_stays_one(store):
    gepa: GEPA[Any] = GEPA()
    gepa._templates = {"a": PromptTemplate(template="{{ x }}", engine="jinja")}
    with pytest.raises(ValueError, match="has not run yet"):
        gepa.get_best_prompts()


class Scaled(LitAgent[int]):
    """An agent whose rewards are on a scale, and which some prompts break.

    Args:
        factor: Factor of its rewards.
        shift: What is added to them.
        breaks: Whether every edit of a prompt breaks it; otherwise some tasks do.
    """

    def __init__(self, factor: float, shift: float, breaks: bool = False) -> None:
        self.factor, self.shift, self.breaks = factor, shift, breaks

    def rollout(self, task: int, resources: Any, rollout: Any) -> float:
        pluses = sum(resources[name].template.count("+") for name in ("plan", "answer"))
        if (pluses and self.breaks) or (not self.breaks and (task + pluses) % 5 == 0):
            raise RuntimeError("broken")
        return self.factor * (pluses + task % 3) / 8 + self.shift


class TestScales:
    @pytest.mark.parametrize(
        ("factor", "shift", "declared"),
        [
            (1, 0, None),
            (1, -1, None),
            (-1, 0, None),
            (10, 0, None),
            (1, -1, (-1, 0)),
            (0.01, -100, None),
        ],
    )
    def test_a_prompt_that_breaks_the_agent_does_not_win(self, fit, factor, shift, declared):
        agent = Scaled(factor, shift, breaks=True)
        agent.reward_range = declared
        gepa = fit(agent=agent, max_iterations=4, perfect_score=None)
        assert gepa.state.best == "v0"
        assert gepa.state.front == ["v0"]

    @pytest.mark.parametrize(("factor", "shift"), [(1, -7), (10, 0), (0.01, 3)])
    def test_the_scale_of_rewards_does_not_change_the_search(self, fit, factor, shift):
        plain = fit(agent=Scaled(1, 0), max_iterations=6, perfect_score=None)
        moved = fit(agent=Scaled(factor, shift), max_iterations=6, perfect_score=None)
        assert [one.prompts for one in moved.history] == [one.prompts for one in plain.history]
        assert (moved.state.best, moved.state.front) == (plain.state.best, plain.state.front)
        assert any(one.failed for one in plain.history)

    def test_a_seed_that_always_fails_is_replaced_by_a_prompt_that_costs_much(self, fit):
        class Costs(LitAgent[int]):
            def rollout(self, task: int, resources: Any, rollout: Any) -> float:
                if "+" not in resources["plan"].template:
                    raise RuntimeError("broken")
                return -50.0 - task

        gepa = fit(agent=Costs(), max_iterations=4, components=["plan"])
        assert gepa.state.best != "v0"
        assert not gepa.state.candidate(gepa.state.best).failed

    def test_rewards_above_one_are_not_taken_for_solved(self, fit):
        class Rated(LitAgent[int]):
            def rollout(self, task: int, resources: Any, rollout: Any) -> float:
                return 3.0 + resources["plan"].template.count("+")

        gepa = fit(agent=Rated(), max_iterations=4, components=["plan"])
        assert gepa.state.rounds == 4
        ignored = fit(agent=Rated(), max_iterations=4, components=["plan"], perfect_score=1.0)
        assert ignored.state.rounds == 4
        rated = Rated()
        rated.reward_range = (0, 5)
        solved = fit(agent=rated, max_iterations=40, components=["plan"])
        assert solved.state.stopped == f"{solved.state.best} solves every validation task"
        assert solved.state.rounds < 40
