"""The critic tries changes of the prompt on the runs that it sees, from a turn on."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

from agl_core.errors import MissingDependencyError, RunFailedError
from agl_core.types import LLM, PromptTemplate
from agl_scripted import Reply, ScriptedModels
from tests.plugins.agl_prompt_search.two_turns import TwoTurns, obedient, question, results

CAREFUL = "Be careful with {question}"
ONE = {"beam_width": 1, "branch_factor": 1, "beam_rounds": 1, "gradient_batch_size": 1}
QUESTIONS = [
    question(1, 2, "no placeholder"),
    question(7, 2, CAREFUL),
    question(1, 9, CAREFUL),
    question(1, 2, CAREFUL),
]
TRIED = (
    "Run 1 continued from turn 2, 3 times each: mean reward 0.00 with the present prompt, "
    "1.00 with the changed one."
)


def resources(models: ScriptedModels) -> dict[str, Any]:
    prompt = PromptTemplate(template="Answer {question}", engine="f-string")
    return {"llm": LLM(endpoint=models.base_url, model="m"), "prompt": prompt}


def test_the_critic_learns_what_its_changes_would_have_done(make_apo, fit, models, store):
    def critic(seen: Any) -> Reply:
        messages = seen.body["messages"]
        if "<critique>" in messages[-1]["content"]:
            return Reply(CAREFUL)
        asked = len(results(messages))
        return Reply(QUESTIONS[asked] if asked < len(QUESTIONS) else "- Ask for care.")

    models.script = critic
    apo = make_apo(**ONE, what_if=4, what_if_samples=3)
    with ScriptedModels(obedient) as agents:
        fit(apo, TwoTurns("prompt"), initial_resources=resources(agents))
        asked = [seen.body["messages"] for seen in agents.requests]
    (candidate,) = apo.history[1:]
    assert (candidate.critique, candidate.prompt) == ("- Ask for care.", CAREFUL)
    first, *_ = (seen.body["messages"] for seen in models.requests)
    assert "up to 4 changes" in first[-1]["content"]
    *_, last = (seen.body["messages"] for seen in models.requests if results(seen.body["messages"]))
    assert results(last) == [
        "Not tried: the edit lost the placeholders question.\nYou may try 3 more changes.",
        "Not tried: the runs are 1 to 1.\nYou may try 2 more changes.",
        "Not tried: run 1 has the turns 1 to 2.\nYou may try 1 more changes.",
        f"{TRIED}\nNow give your answer.",
    ]
    rollouts = asyncio.run(store.query_rollouts()).items
    forks = [one for one in rollouts if one.config.replay]
    assert [one.status for one in forks] == ["succeeded"] * 6
    assert len({one.config.replay.rollout_id for one in forks}) == 1
    assert apo.state.spent.rollouts == len(rollouts)
    assert apo.state.spent.calls == 6
    live = [messages for messages in asked if len(messages) == 4]
    assert len(live) == len(rollouts), "forks ask the model for the second turn only"
    assert len(asked) == 2 * (len(rollouts) - 6) + 6


def test_a_critic_that_only_asks_gives_no_critique(make_apo, fit, models):
    models.script = lambda seen: Reply(question(1, 1, "no placeholder"))
    apo = make_apo(**ONE, what_if=1)
    with (
        ScriptedModels(obedient) as agents,
        pytest.raises(RunFailedError, match="another question instead of an answer"),
    ):
        fit(apo, TwoTurns("prompt"), initial_resources=resources(agents))
    assert apo.history[1].rejected == "no critique: another question instead of an answer"


def test_questions_count_in_the_budget(make_apo, fit, models):
    apo = make_apo(**ONE, what_if=2, max_calls=3)
    fit(apo)
    assert apo.state.stopped == "max_calls = 3 are made"
    assert not models.requests


def test_a_missing_package_is_named(make_apo, fit, monkeypatch):
    found = importlib.util.find_spec

    def without_replay(name: str, *args: Any) -> Any:
        return None if name == "agl_replay" else found(name, *args)

    monkeypatch.setattr("agl_prompt_search.what_if.find_spec", without_replay)
    apo = make_apo(**ONE, what_if=1)
    with pytest.raises(Exception, match=r"is not installed: .*agl.replay") as raised:
        fit(apo)
    assert isinstance(raised.value.__cause__ or raised.value, MissingDependencyError)
