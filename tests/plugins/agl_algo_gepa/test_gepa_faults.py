"""Models that reply with errors, nonsense or nothing: reasons in the history, no crash."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.errors import ConfigError
from agl_core.types import FINISHED_STATUSES
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_testing.ports import held_port

SEEDS = {"plan": "Plan {question}", "answer": "Answer {question}"}


async def nothing() -> None:
    await asyncio.Event().wait()


def check(gepa: Any, store: Any) -> set[str]:
    """Check that the run ended normally with the seed as best candidate; return the rejections."""
    assert gepa.state.best == "v0"
    latest = asyncio.run(store.get_latest_resources()).resources
    assert {name: latest[name].template for name in SEEDS} == SEEDS
    assert {one.status for one in asyncio.run(store.query_rollouts())} <= FINISHED_STATUSES
    assert all(one.rejected and not one.rewards for one in gepa.history[1:])
    return {one.rejected for one in gepa.history[1:]}


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("```\n\n```", "plan: no edit: the answer is empty"),
        ("No question + asked", "plan: the edit lost the placeholders question"),
        ("{question} {mood} +", "plan: the edit has placeholders without values: mood"),
        ("<think>Let me see. {question}", "plan: no edit: the answer is empty"),
    ],
)
def test_a_useless_edit_is_rejected_with_the_reason(fit, store, edit, reason):
    gepa = fit(
        lambda _: edit,
        max_iterations=5,
        components=None,
        fails="GEPA got no usable prompt",
    )
    reasons = check(gepa, store)
    assert any(one.startswith(reason) for one in reasons), reasons
    assert gepa.state.rounds == 5
    assert not gepa.state.stopped
    assert gepa.state.spent.rollouts == 6 + 5 * 2, "no candidate was run"


def test_an_edit_that_changes_nothing_is_rejected(fit, store):
    gepa = fit(lambda _: "Plan {question}", max_iterations=3, components=["plan"])
    assert "the edit is the same as v0" in check(gepa, store)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("HTTP 500"), "no edit: RuntimeError: HTTP 500"),
        (ConnectionResetError("gone"), "no edit: ConnectionResetError: gone"),
        (nothing, "no edit: no answer within 0.2 s"),
        ("", "no edit: the answer is empty"),
        ("  \n", "no edit: the answer is empty"),
        (SimpleNamespace(choices=[]), "no edit: the answer is not a chat completion"),
        (SimpleNamespace(error="no"), "no edit: the answer is not a chat completion"),
    ],
)
def test_a_model_that_never_answers_ends_the_search_early(fit, store, answer, reason):
    gepa = fit(
        lambda _: answer,
        call_timeout=0.2,
        max_iterations=50,
        fails="GEPA got no usable prompt in 3 proposals",
    )
    reasons = check(gepa, store)
    assert {one.partition(": ")[2] for one in reasons} == {reason}
    assert gepa.state.stopped.startswith("the model gave no answer in 3 rounds: ")
    assert gepa.state.stopped.endswith(reason)
    assert gepa.state.spent.calls == 3


def test_a_model_that_answers_now_and_then_is_made_use_of(fit):
    count = iter(range(1000))

    def now_and_then(request: Any) -> Any:
        number = next(count)
        if number % 3:
            return RuntimeError("busy")
        text = request["messages"][-1]["content"]
        prompt = text.split("<prompt_template>\n")[1].split("\n</prompt_template>")[0]
        return f"{prompt} +{number}"

    gepa = fit(now_and_then, max_iterations=30)
    assert not gepa.state.stopped.startswith("the model")
    assert gepa.state.best != "v0"


def test_real_endpoints_from_the_environment(fit, store, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with ScriptedModels([Reply(error_status=401)]) as models:
        monkeypatch.setenv("OPENAI_BASE_URL", models.base_url)
        fit(None, fails="1 times: plan: no edit: AuthenticationError: ")
        # One of a list of models, which costs nothing, and one that is refused.
        assert len([one for one in models.requests if one.path.endswith("/completions")]) == 1
    with held_port() as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        gepa = fit(None, max_iterations=1, perfect_score=None, fails="Connection error")
    assert gepa.history[1].rejected == "plan: no edit: APIConnectionError: Connection error."
    check(gepa, store)


class WrongKey(RuntimeError):
    """What a client raises if the endpoint refuses its key."""

    status_code = 401


class RefusedList:
    """The list of models of an endpoint that refuses the key."""

    async def list(self) -> None:
        raise WrongKey("no list")


def test_a_wrong_key_ends_the_search_before_the_first_rollout(fit, store, make_client, monkeypatch):
    monkeypatch.setattr(make_client, "models", RefusedList(), raising=False)
    with pytest.raises(ConfigError, match=r"the model '.*' cannot be called: WrongKey: no answer"):
        fit(lambda _: WrongKey("no answer"))
    assert not asyncio.run(store.query_rollouts())


class Broken(LitAgent[int]):
    def rollout(self, task: int, resources: Any, rollout: Any) -> float:
        raise RuntimeError("always")


class Hanging(LitAgent[int]):
    async def rollout_async(self, task: int, resources: Any, rollout: Any) -> float:
        await asyncio.Event().wait()
        return 1.0


def test_an_agent_that_always_fails_scores_nothing(fit, store):
    gepa = fit(agent=Broken(), fails="RuntimeError always", max_iterations=3)
    check(gepa, store)
    assert gepa.history[0].score() is None
    assert gepa.history[0].failed == list(range(6))


def test_an_agent_that_hangs_ends_with_the_batch(fit, store):
    gepa = fit(
        agent=Hanging(),
        max_iterations=1,
        rollout_batch_timeout=0.3,
        fails="GEPA: no rollout of the agent ended in time",
    )
    check(gepa, store)
    assert gepa.history[0].score() is None


class Lost(InMemoryLightningStore):
    """A store that fails after some calls."""

    calls = 0

    async def enqueue_many_rollouts(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls > 3:
            raise ConnectionError("the store is gone")
        return await super().enqueue_many_rollouts(*args, **kwargs)


async def test_a_lost_store_ends_the_run_with_its_error():
    """The engine itself would catch the error of a candidate and continue."""
    from agl_algo_gepa.bridge import Bridge

    store, bridge = Lost(), Bridge()
    tried: list[int] = []

    def engine() -> str:
        for number in range(10):
            try:
                tried.append(number)
                bridge.call(store.enqueue_many_rollouts, [])
            except Exception:
                continue
        return "went on"

    with pytest.raises(ConnectionError, match="the store is gone"):
        await bridge.run(engine)
    assert tried == [0, 1, 2, 3]
