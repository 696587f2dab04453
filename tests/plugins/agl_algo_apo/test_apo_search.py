"""The search with a scripted critic and editor: its rollouts, candidates and final resources."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from agl_algo_apo import APO
from agl_core.agent import rollout
from agl_core.types import FINISHED_STATUSES, LLM, PromptTemplate
from agl_scripted import Reply, ScriptedModels


def rollouts_of(store: Any) -> list[Any]:
    return asyncio.run(store.query_rollouts()).items


class TestResult:
    def test_it_finds_a_better_prompt_and_makes_it_the_latest(self, make_apo, fit, store):
        apo = make_apo()
        fit(apo)
        state = apo.state
        seed, best = state.candidate("v0"), state.candidate(state.best)
        assert seed.score().mean == 0.0
        assert best.score().mean == 0.5  # two rounds add two pluses, which solve two of four tasks
        assert best.prompt.count("+") == 2
        assert apo.get_best_prompt() == PromptTemplate(template=best.prompt, engine="f-string")
        latest = asyncio.run(store.get_latest_resources())
        assert latest.resources_id.endswith(f"/{best.version}")
        assert latest.resources["prompt"].template == best.prompt
        assert isinstance(latest.resources["llm"], LLM), "other resources must come along"

    def test_history_tells_of_every_candidate(self, make_apo, fit):
        apo = make_apo()
        fit(apo)
        assert [one.version for one in apo.history] == [f"v{i}" for i in range(9)]
        first = apo.history[1]
        assert (first.parent, first.round) == ("v0", 1)
        assert first.critique == "- It needs more pluses."
        assert first.prompt.startswith("Answer {question} well +")
        assert first.score(sorted(first.rewards)).n >= 3
        later = [one for one in apo.history if one.round == 2]
        assert {one.parent for one in later} <= {one.version for one in apo.history[:5]}
        assert [point.round for point in apo.state.curve] == [0, 1, 2]

    def test_a_useless_editor_leaves_the_seed(self, make_apo, fit, models, store):
        models.script = lambda request: Reply("Worse: {question}")
        apo = make_apo()
        fit(apo)
        assert apo.state.best == "v0"
        latest = asyncio.run(store.get_latest_resources())
        assert latest.resources_id.endswith("/v0")

    def test_nothing_is_known_before_a_run(self, make_apo):
        with pytest.raises(ValueError, match="has not run yet"):
            make_apo().get_best_prompt()


class TestEvaluation:
    def test_all_candidates_of_a_round_meet_the_same_rows(self, make_apo, fit):
        apo = make_apo(beam_rounds=1)
        fit(apo)
        fresh = [set(one.rewards) for one in apo.history if one.round == 1]
        leader = max(fresh, key=len)
        assert leader == set(range(8)), "the leader is measured on all rows"
        batches = {frozenset(rows) for rows in fresh if rows != leader}
        assert len(batches) == 1
        assert len(next(iter(batches))) == 3

    def test_a_prompt_meets_each_validation_row_once(self, make_apo, fit, store):
        fit(make_apo())
        runs = Counter(
            (one.resources_id, one.input) for one in rollouts_of(store) if one.mode == "val"
        )
        assert set(runs.values()) == {1}

    def test_rollouts_are_counted(self, make_apo, fit, store):
        apo = make_apo()
        fit(apo)
        assert apo.state.spent.rollouts == len(rollouts_of(store))

    def test_candidates_run_side_by_side(self, make_apo, fit):
        running: set[str] = set()
        all_run = threading.Event()

        @rollout
        def waiting(task: int, prompt_template: PromptTemplate) -> float:
            if "+" not in prompt_template.template:
                return 0.0
            running.add(prompt_template.template)
            if len(running) == 4:
                all_run.set()
            return float(all_run.wait(20))

        apo = make_apo(beam_rounds=1, val_batch_size=1)
        fit(apo, waiting, n_runners=8)
        rewards = [one.rewards.values() for one in apo.history if one.round == 1]
        assert all(set(values) == {1.0} for values in rewards)

    def test_without_initial_validation_the_seed_is_measured_in_the_round(self, make_apo, fit):
        apo = make_apo(beam_rounds=1, val_batch_size=8, run_initial_validation=False)
        fit(apo)
        assert len(apo.history[0].rewards) == 8
        assert apo.state.best != "v0"

    def test_what_does_not_end_in_time_is_cancelled_and_counts_as_failed(
        self, make_apo, fit, store
    ):
        release = threading.Event()

        @rollout
        def slow(task: int, prompt_template: PromptTemplate) -> float:
            if task == 5:
                release.wait(30)
            return 1.0

        apo = make_apo(beam_rounds=1, rollout_batch_timeout=0.4, branch_factor=1, beam_width=1)
        threading.Timer(4, release.set).start()
        fit(apo, slow)
        assert {one.status for one in rollouts_of(store)} <= FINISHED_STATUSES
        seed = apo.history[0]
        assert seed.failed == [5]
        assert seed.rewards == {row: float(row != 5) for row in range(8)}

    def test_a_prompt_that_makes_the_agent_hang_does_not_win(self, make_apo, fit):
        """It solves the tasks on which it ends, and these alone must not be its score."""

        @rollout
        async def agent(task: int, prompt_template: PromptTemplate) -> float:
            if "+" not in prompt_template.template:
                return 0.5
            if task % 2:
                await asyncio.Event().wait()
            return 0.75

        apo = make_apo(beam_rounds=1, rollout_batch_timeout=0.5, val_batch_size=8)
        fit(apo, agent, n_runners=40)
        assert apo.state.best == "v0"
        assert all(one.failed == [1, 3, 5, 7] for one in apo.history[1:])

    @pytest.mark.parametrize("scale", [(1, 0), (1, -1), (-1, 0), (10, 0), (1, 5), (0.01, -100)])
    @pytest.mark.parametrize("declared", [True, False])
    def test_a_prompt_that_breaks_the_agent_does_not_win(self, make_apo, fit, scale, declared):
        factor, shift = scale

        @rollout
        def agent(task: int, prompt_template: PromptTemplate) -> float:
            if "+" in prompt_template.template:
                raise RuntimeError("broken")
            return factor * (task % 2) + shift

        ends = sorted((factor * 0 + shift, factor * 1 + shift))
        apo = make_apo(beam_rounds=1)
        fit(apo, agent, **{"reward_range": ends} if declared else {})
        assert apo.state.best == "v0"

    @pytest.mark.parametrize("scale", [(1, 0), (1, -7), (10, 0), (0.01, 3), (1, 1)])
    def test_the_scale_of_rewards_does_not_change_the_search(self, make_apo, fit, scale):
        """Some rollouts of each prompt fail, and rewards are shifted or scaled."""
        factor, shift = scale

        def agent_of(factor: float, shift: float) -> Any:
            @rollout
            def agent(task: int, prompt_template: PromptTemplate) -> float:
                if (task + len(prompt_template.template)) % 5 == 0:
                    raise RuntimeError("broken")
                return factor * (prompt_template.template.count("+") + task % 3) / 8 + shift

            return agent

        plain, moved = make_apo(), make_apo()
        fit(plain, agent_of(1, 0))
        fit(moved, agent_of(factor, shift))
        assert moved.state.best == plain.state.best
        assert moved.state.beam == plain.state.beam
        assert any(one.failed for one in plain.history)

    def test_a_prompt_that_the_agent_does_not_use_is_noticed(self, make_apo, fit, caplog):
        @rollout
        def agent(task: int) -> float:
            return task / 10

        fit(make_apo(beam_rounds=1), agent)
        assert "does the agent use the prompt among its resources?" in caplog.text

    def test_a_template_of_another_engine_is_noticed(self, make_apo, fit, caplog):
        seed = PromptTemplate(template="Answer {question} well", engine="jinja")
        llm = LLM(endpoint="http://127.0.0.1:1/v1", model="none")
        fit(make_apo(beam_rounds=1), initial_resources={"llm": llm, "prompt": seed})
        assert "no placeholder of its engine, jinja, but {question} looks like" in caplog.text

    def test_it_ends_with_a_prompt_that_solves_every_task(self, make_apo, fit, models):
        apo = make_apo(beam_rounds=50)
        fit(apo)
        assert apo.state.stopped == f"{apo.state.best} solves every validation task"
        assert apo.state.rounds < 50

    def test_rewards_above_one_are_not_taken_for_solved(self, make_apo, fit):
        @rollout
        def agent(task: int, prompt_template: PromptTemplate) -> float:
            return 3.0 + prompt_template.template.count("+")

        apo = make_apo(beam_rounds=2)
        fit(apo, agent)
        assert apo.state.rounds == 2
        limited = make_apo(beam_rounds=9)
        fit(limited, agent, reward_range=(0, 5))
        assert limited.state.rounds == 2
        assert "solves every" in limited.state.stopped


class TestRepeatability:
    def test_equal_seeds_find_the_same(self, make_apo, fit):
        states = []
        for _ in range(2):
            apo = make_apo()
            fit(apo)
            states.append(apo.state.model_dump())
        assert states[0] == states[1]

    def test_another_seed_finds_something_else(self, make_apo, fit):
        prompts = []
        for seed in (1, 2):
            apo = make_apo(seed=seed)
            fit(apo)
            prompts.append(apo.get_best_prompt().template)
        assert prompts[0] != prompts[1]

    def test_requests_carry_model_temperature_and_seed(self, make_apo, fit, models: ScriptedModels):
        apo = make_apo(
            gradient_model="critic", apply_edit_model="editor", diversity_temperature=0.3
        )
        fit(apo)
        assert {r.body["model"] for r in models.requests} == {"critic", "editor"}
        assert {r.body["temperature"] for r in models.requests} == {0.3}
        seeds = [r.body["seed"] for r in models.requests]
        assert len(set(seeds)) == len(seeds) == apo.state.spent.calls == 16

    def test_without_a_seed_requests_have_none(self, make_apo, fit, models: ScriptedModels):
        models.script = lambda request: Reply("{question}")
        fit(make_apo(seed=None, beam_rounds=1))
        assert all("seed" not in r.body for r in models.requests)


class TestQuestions:
    def test_the_critic_sees_rewards_and_the_editor_the_critique(
        self, make_apo, fit, models: ScriptedModels
    ):
        fit(make_apo(beam_rounds=1))
        asked = [r.body["messages"] for r in models.requests]
        critics = [m[-1]["content"] for m in asked if "<critique>" not in m[-1]["content"]]
        editors = [m[-1]["content"] for m in asked if "<critique>" in m[-1]["content"]]
        assert len(critics) == len(editors) == 4
        assert all("Answer {question} well" in text for text in critics + editors)
        assert all(text.count("</run>") == 2 and '"0.0"' in text for text in critics)
        assert all("- It needs more pluses." in text for text in editors)


class TestWhatItNeeds:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"initial_resources": {}}, "needs a PromptTemplate"),
            ({"initial_resources": None}, "needs a PromptTemplate"),
            ({"adapter": "triplet"}, "reads conversations"),
        ],
    )
    def test_a_missing_part_is_named(self, make_apo, fit, options, message):
        with pytest.raises(ValueError, match=message):
            fit(make_apo(), **options)

    async def test_a_missing_dataset_is_named(self, make_apo, store):
        apo = make_apo()
        apo.set_store(store)
        with pytest.raises(ValueError, match="APO has no adapter"):
            await apo.run([1], [1])
        from agl_adapters import TraceToMessages

        apo.set_adapter(TraceToMessages())
        with pytest.raises(ValueError, match="needs tasks in train_dataset"):
            await apo.run([], [1])
        with pytest.raises(ValueError, match="needs tasks in val_dataset"):
            await apo.run([1])

    def test_it_is_generic_in_the_task(self):
        assert APO[int] is not None
