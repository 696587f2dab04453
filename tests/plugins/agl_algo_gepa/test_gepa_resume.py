"""A stopped run resumes: no rollout is repeated, and the result is that of a complete run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import anyio
import pytest

from agl_adapters import TraceToMessages
from agl_algo_gepa import GEPA
from agl_algorithm_kit import StoredRun
from agl_core.algorithm import RewardRange
from agl_core.errors import ConfigError, RunFailedError, SpansEvictedError
from agl_core.status import INFRASTRUCTURE
from agl_core.types import PromptTemplate
from agl_store_memory import InMemoryLightningStore

OPTIONS: dict[str, Any] = {
    "max_iterations": 6,
    "reflection_minibatch_size": 3,
    "proposals_per_iteration": 2,
    "use_merge": True,
    "perfect_score": None,
    "seed": 3,
}
STEPS = 20  # largest number of rollouts and calls before a run is stopped


class Stop:
    """Cancels a run at its n-th rollout or call of the model, or lets all of these calls fail."""

    def __init__(
        self, at: int = -1, *, natively: bool = True, error: Exception | None = None
    ) -> None:
        self.error = error
        self.at = at
        self.natively = natively
        self.steps = 0
        self.victim: asyncio.Future[Any] | None = None
        self.scope = anyio.CancelScope()

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            if self.natively and self.victim is not None:
                self.victim.cancel()
            else:
                self.scope.cancel()


async def work(store: InMemoryLightningStore, stop: Stop) -> None:
    """Run rollouts; the reward is the share of the required pluses in one of the prompts."""
    while True:
        claimed = await store.dequeue_rollout("Worker-0", wait=10)
        if claimed is None:
            continue
        stop.step()
        assert claimed.resources_id is not None
        found = await store.get_resources_by_id(claimed.resources_id)
        assert found is not None
        template: Any = found.resources["plan" if claimed.input % 2 else "answer"]
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        reward = float(template.template.count("+") >= claimed.input % 3)
        await store.add_span(make_span(ids, await store.get_next_span_sequence_id(*ids), reward))
        await store.update_attempt(*ids, status="succeeded")


def make_span(ids: tuple[str, str], number: int, reward: float) -> Any:
    from agl_core.types import Span

    return Span.from_attributes(
        name="agentlightning.annotation",
        attributes={
            "agentlightning.reward.0.name": "primary",
            "agentlightning.reward.0.value": reward,
        },
        rollout_id=ids[0],
        attempt_id=ids[1],
        sequence_id=number,
    )


async def run(
    store: InMemoryLightningStore,
    make_client: Any,
    stop: Stop,
    reward_range: tuple[float, float] | None = None,
    **options: Any,
) -> GEPA[Any]:
    def reflect(request: dict[str, Any]) -> Any:
        async def answer() -> Any:
            stop.step()
            await asyncio.sleep(0)
            if stop.error is not None:
                raise stop.error
            text = request["messages"][-1]["content"]
            prompt = text.split("<prompt_template>\n")[1].split("\n</prompt_template>")[0]
            reply = make_client(lambda _: f"{prompt} +{request['seed'] % 1000}")
            return await reply.create()

        return answer

    prompts = {"plan": "Plan {question}", "answer": "Answer {question}"}
    templates = {n: PromptTemplate(template=t, engine="f-string") for n, t in prompts.items()}
    gepa: GEPA[Any] = GEPA(make_client(reflect), **{**OPTIONS, **options})
    gepa.set_store(store)
    gepa.set_adapter(TraceToMessages())
    gepa.set_initial_resources(dict(templates))
    gepa.set_context(replace(gepa.context, reward_range=RewardRange.of(reward_range)))
    gepa.set_run(await StoredRun.open(store, "rooms"))
    worker = asyncio.create_task(work(store, stop))

    async def search() -> None:
        with stop.scope:
            await gepa.run(list(range(9)), list(range(6)))

    stop.victim = searching = asyncio.ensure_future(search())
    try:
        await asyncio.wait((searching,))
        if not searching.cancelled():
            searching.result()
    finally:
        worker.cancel()
        await asyncio.wait((worker,))
    return gepa


async def rollouts(store: InMemoryLightningStore) -> Counter[Any]:
    return Counter(
        (one.metadata["batch"], one.metadata["index"])
        for one in await store.query_rollouts()
        if one.metadata
    )


@pytest.fixture
async def undisturbed(make_client) -> tuple[Any, Counter[Any]]:
    store = InMemoryLightningStore()
    stop = Stop()
    gepa = await run(store, make_client, stop)
    assert stop.steps > STEPS
    assert gepa.state is not None
    assert gepa.state.best != "v0"
    assert any("+" in (one.parent or "") for one in gepa.history), "some were combined"
    return gepa.state.model_dump(), await rollouts(store)


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize("at", range(1, STEPS + 1, 2))
async def test_it_ends_as_if_it_had_not_been_stopped(undisturbed, make_client, at, natively):
    store = InMemoryLightningStore()
    stopped = await run(store, make_client, Stop(at, natively=natively))
    assert stopped.state is not None
    assert stopped.state.rounds < OPTIONS["max_iterations"]
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources == stopped.get_best_prompts(), "also then the best is written back"
    resumed = await run(store, make_client, Stop())
    assert resumed.state is not None
    assert resumed.state.model_dump() == undisturbed[0]
    assert await rollouts(store) == undisturbed[1]


async def test_stopped_again_and_again_it_still_gets_there(undisturbed, make_client):
    store, resumed = InMemoryLightningStore(), None
    for _ in range(100):
        resumed = await run(store, make_client, Stop(7))
        assert resumed.state is not None
        if resumed.state.rounds == OPTIONS["max_iterations"]:
            break
    assert resumed is not None
    assert resumed.state is not None
    assert resumed.state.model_dump() == undisturbed[0]
    assert await rollouts(store) == undisturbed[1]


async def test_more_iterations_may_follow_but_nothing_else_changes(make_client):
    store = InMemoryLightningStore()
    short = await run(store, make_client, Stop(), max_iterations=3)
    longer = await run(store, make_client, Stop(), max_iterations=4)
    assert short.state is not None
    assert longer.state is not None
    n = len(short.history)
    assert [one.prompts for one in longer.history[:n]] == [one.prompts for one in short.history]
    assert longer.state.rounds == 4
    with pytest.raises(ConfigError, match="started with other reflection_minibatch_size; choose"):
        await run(store, make_client, Stop(), reflection_minibatch_size=2)


class Refused(RuntimeError):
    status_code = 404


@pytest.mark.parametrize("error", [Refused("no such model"), ConnectionError("gone")])
async def test_a_run_that_got_no_answer_asks_again(undisturbed, make_client, error):
    store = InMemoryLightningStore()
    with pytest.raises(RunFailedError, match="GEPA got no usable prompt"):
        await run(store, make_client, Stop(error=error))
    with pytest.raises(RunFailedError, match="GEPA got no usable prompt"):
        await run(store, make_client, Stop(error=error))
    resumed = await run(store, make_client, Stop())
    assert resumed.state is not None
    known = undisturbed[0]["history"]
    assert [one.model_dump() for one in resumed.history] == known
    assert set((await rollouts(store)).values()) == {1}
    failed, state = resumed.state.journal.lost, resumed.state
    assert len(failed) >= 2
    assert state.spent.calls == undisturbed[0]["spent"]["calls"] + len(failed)
    assert state.spent.rollouts == len(await rollouts(store)), "also of the rounds in vain"


async def test_other_decisions_use_no_entry_of_other_rows_or_prompts(make_client):
    """The journal of an older run does not tell its reward range, so decisions may differ."""
    store = InMemoryLightningStore()
    await run(store, make_client, Stop(), max_iterations=3)
    session = await StoredRun.open(store, "rooms")
    state = session.state
    assert state["journal"]["answers"]
    for key, reply in state["journal"]["answers"].items():
        reply["text"] += " ++" if key.startswith("v3/") else ""
    await session.save(state)
    resumed = await run(store, make_client, Stop())
    assert resumed.state is not None
    measured = [one for one in resumed.history if one.rewards]
    assert len(measured) > 2
    for one in measured:
        pluses = {name: text.count("+") for name, text in one.prompts.items()}
        assert one.rewards == {
            row: float(pluses["plan" if row % 2 else "answer"] >= row % 3) for row in range(6)
        }


async def test_a_run_does_not_go_on_with_another_reward_range(make_client):
    store = InMemoryLightningStore()
    await run(store, make_client, Stop(12))
    with pytest.raises(ConfigError, match="started with other reward_range; choose"):
        await run(store, make_client, Stop(), reward_range=(0, 1))


async def test_a_journal_of_an_older_version_is_used(undisturbed, make_client, monkeypatch):
    """Its names have the numbers of batches, and no digests."""
    from agl_algo_gepa.recorder import Recorder

    store = InMemoryLightningStore()
    with monkeypatch.context() as old:
        old.setattr(Recorder, "entry", lambda _self, _name, old_name, _known: old_name)
        await run(store, make_client, Stop(), max_iterations=3)
    made = await rollouts(store)
    resumed = await run(store, make_client, Stop())
    assert [one.model_dump() for one in resumed.history] == undisturbed[0]["history"]
    assert resumed.state is not None
    read = {name for name, _ in made} & set(resumed.state.batches)
    assert len(read) >= 6


class Evicting(InMemoryLightningStore):
    """A store that has dropped the spans of the rollouts that ended before a moment."""

    gone: Collection[str] = ()

    async def query_spans(self, rollout_id: str, *args: Any, **kwargs: Any) -> Any:
        if rollout_id in self.gone:
            raise SpansEvictedError("dropped")
        return await super().query_spans(rollout_id, *args, **kwargs)


async def test_a_run_goes_on_without_the_spans_that_the_store_dropped(undisturbed, make_client):
    """Its journal knows the rewards; the spans would only have shown more."""
    store = Evicting()
    await run(store, make_client, Stop(13))  # at the first call of the model
    store.gone = {one.rollout_id for one in await store.query_rollouts()}
    resumed = await run(store, make_client, Stop())
    assert [one.model_dump() for one in resumed.history] == undisturbed[0]["history"]


class Losing(InMemoryLightningStore):
    """A store in whose first attempt the runner loses the proxy."""

    is_up = False

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_up:
            self.is_up = True
            lost = {INFRASTRUCTURE: "proxy", "repeatable": False}
            kwargs |= {"status": "failed", "metadata": lost}
        return await super().update_attempt(*args, **kwargs)


async def test_a_lost_rollout_ends_the_run_and_a_resumed_one_goes_on(undisturbed, make_client):
    store = Losing()
    with pytest.raises(ExceptionGroup) as raised:
        await run(store, make_client, Stop())
    assert raised.group_contains(RunFailedError, match="of v0 failed by the proxy.* resume the run")
    resumed = await run(store, make_client, Stop())
    assert [one.model_dump() for one in resumed.history] == undisturbed[0]["history"]


async def test_a_search_without_further_answers_fails_and_can_be_resumed(undisturbed, make_client):
    store = InMemoryLightningStore()
    await run(store, make_client, Stop(), max_iterations=2)
    with pytest.raises(RunFailedError, match="GEPA: the model gave no answer in 3 rounds: "):
        await run(store, make_client, Stop(error=ConnectionError("gone")), max_iterations=9)
    resumed = await run(store, make_client, Stop())
    assert [one.model_dump() for one in resumed.history] == undisturbed[0]["history"]


@pytest.mark.parametrize("rollouts", [1, 20])
async def test_a_run_that_stopped_at_a_limit_goes_on_with_a_higher_one_only(make_client, rollouts):
    store = InMemoryLightningStore()
    stopped = await run(store, make_client, Stop(), max_rollouts=rollouts)
    assert stopped.state is not None
    assert "may exceed max_rollouts" in stopped.state.stopped
    session = await StoredRun.open(store, "rooms")
    assert not GEPA(**OPTIONS, max_rollouts=rollouts).has_more_to_do(session)
    assert GEPA(**OPTIONS, max_rollouts=rollouts + 1).has_more_to_do(session)
    assert GEPA(**OPTIONS).has_more_to_do(session)
