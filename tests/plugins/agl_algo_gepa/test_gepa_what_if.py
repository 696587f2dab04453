"""The reflecting model tries changes of a prompt on the runs that it sees, also over a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_algo_gepa import GEPA
from agl_core.trainer import Trainer
from agl_core.types import LLM, PromptTemplate
from agl_prompt_search import MeteredModel
from agl_scripted import ScriptedModels
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_prompt_search.two_turns import TwoTurns, obedient, question, results

CAREFUL = "Be careful with {question}"
OPTIONS: dict[str, Any] = {
    "max_iterations": 1,
    "reflection_minibatch_size": 2,
    "seed": 1,
    "what_if": 2,
}


def asks_twice(request: dict[str, Any]) -> str:
    asked = len(results(request["messages"]))
    return question(2, asked + 1, CAREFUL) if asked < 2 else CAREFUL


def run(client: Any, store: InMemoryLightningStore, agents: ScriptedModels) -> GEPA[Any]:
    gepa: GEPA[Any] = GEPA(client, **OPTIONS)
    Trainer(
        algorithm=gepa,
        store=store,
        strategy="shm",
        adapter="messages",
        n_runners=2,
        run="careful",
        initial_resources={
            "llm": LLM(endpoint=agents.base_url, model="m"),
            "answer": PromptTemplate(template="Answer {question}", engine="f-string"),
        },
    ).fit(TwoTurns("answer"), [0, 1, 2], val_dataset=[3, 4])
    return gepa


@pytest.mark.parametrize(
    "stopped_at", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (None, 1))]
)
def test_it_learns_what_its_changes_would_have_done(make_client, store, monkeypatch, stopped_at):
    client = make_client(asks_twice)
    ask = MeteredModel.ask

    async def stop(self: Any, model: str, messages: Any, seed: Any = None) -> Any:
        if len(results(messages)) == stopped_at:
            raise RuntimeError("stopped")
        return await ask(self, model, messages, seed)

    with ScriptedModels(obedient) as agents:
        if stopped_at is not None:
            with monkeypatch.context() as patch:
                patch.setattr(MeteredModel, "ask", stop)
                with pytest.raises(RuntimeError, match="stopped"):
                    run(client, store, agents)
        gepa = run(client, store, agents)
    assert len(client.requests) == 3, "no call is made twice"
    assert gepa.get_best_prompts()["answer"].template == CAREFUL
    told = results(client.requests[-1]["messages"])
    assert [text.splitlines()[0] for text in told] == [
        f"Run 2 continued from turn {turn}, 2 times each: mean reward 0.00 with the present "
        "prompt, 1.00 with the changed one."
        for turn in (1, 2)
    ]
    assert gepa.state is not None
    assert gepa.state.spent.calls == 3
    # Two validation and two training tasks with each of the two prompts, and two questions.
    assert gepa.state.spent.rollouts == 2 * (2 + 2) + 2 * 4
    forks = [one for one in asyncio.run(store.query_rollouts()) if one.config.replay]
    assert len(forks) == 8, "no fork is made twice"
