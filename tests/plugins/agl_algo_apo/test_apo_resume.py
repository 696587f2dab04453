"""A killed run resumes: no rollout is repeated, and the result is that of an uninterrupted run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from agl_adapters import TraceToMessages
from agl_algo_apo import APO
from agl_algorithm_kit import StoredRun
from agl_core.errors import ConfigError, RunFailedError
from agl_core.status import INFRASTRUCTURE
from agl_core.types import PromptTemplate, Span
from agl_store_memory import InMemoryLightningStore

SIZES: dict[str, Any] = {
    "beam_width": 2,
    "branch_factor": 1,
    "beam_rounds": 2,
    "gradient_batch_size": 2,
    "val_batch_size": 3,
    "seed": 1,
}
CALLS = 8  # in an uninterrupted run: two rounds of two proposals of two calls
ROLLOUTS = 6 + 2 * 2 * 2  # the seed on all rows, and the training tasks; more rollouts follow


class Editor:
    """A client that adds a plus, kills the run at one of its calls, and fails at others."""

    def __init__(self, dies_at: int = -1, fails_at: Collection[int] = ()) -> None:
        self.fails_at = fails_at
        self.chat = self.completions = self
        self.calls = 0
        self.dies_at = dies_at
        self.victim: asyncio.Future[Any] | None = None

    async def create(self, *, messages: Any, seed: int, **_: Any) -> Any:
        self.calls += 1
        if self.calls == self.dies_at and self.victim is not None:
            self.victim.cancel()
        await asyncio.sleep(0)
        if self.calls in self.fails_at:
            raise RuntimeError("HTTP 429")
        asked = messages[-1]["content"]
        prompt = asked.split("<prompt_template>\n")[1].split("\n</prompt_template>")[0]
        text = f"{prompt} +{seed % 1000}" if "<critique>" in asked else "- More pluses."
        return Completion(text)


class Completion:
    def __init__(self, text: str) -> None:
        self.choices = [self]
        self.message = self
        self.content = text
        self.usage = None


async def work(store: InMemoryLightningStore) -> None:
    """Run rollouts; the reward is 1 if the prompt has more pluses than the task requires."""
    while True:
        claimed = await store.dequeue_rollout("Worker-0", wait=10)
        if claimed is None:
            continue
        assert claimed.resources_id is not None
        found = await store.get_resources_by_id(claimed.resources_id)
        assert found is not None
        template: Any = found.resources["prompt"]
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        reward = Span.from_attributes(
            name="agentlightning.annotation",
            attributes={
                "agentlightning.reward.0.name": "primary",
                "agentlightning.reward.0.value": float(
                    template.template.count("+") > claimed.input % 3
                ),
            },
            rollout_id=ids[0],
            attempt_id=ids[1],
            sequence_id=await store.get_next_span_sequence_id(*ids),
        )
        await store.add_span(reward)
        await store.update_attempt(*ids, status="succeeded")


async def run(
    store: InMemoryLightningStore,
    editor: Editor,
    prompt: str = "{question}",
    val: Sequence[int] = range(6),
    **options: Any,
) -> APO:
    apo = APO(editor, **{**SIZES, **options})
    apo.set_store(store)
    apo.set_adapter(TraceToMessages())
    apo.set_initial_resources({"prompt": PromptTemplate(template=prompt, engine="f-string")})
    apo.set_run(await StoredRun.open(store, "rooms"))
    worker = asyncio.create_task(work(store))
    editor.victim = search = asyncio.ensure_future(apo.run(list(range(8)), list(val)))
    try:
        await asyncio.wait((search,))
        if not search.cancelled():
            search.result()
    finally:
        worker.cancel()
        await asyncio.wait((worker,))
    return apo


async def rollouts(store: InMemoryLightningStore) -> Counter[Any]:
    return Counter(
        (one.metadata["batch"], one.metadata["index"])
        for one in await store.query_rollouts()
        if one.metadata
    )


def outcome(apo: APO) -> Any:
    """Return a run's results without the cost of interrupted calls."""
    assert apo.state is not None
    found = apo.state.model_dump(exclude={"spent": {"calls"}})
    for point in found["curve"]:
        del point["calls"]
    return found


@pytest.fixture
async def undisturbed() -> tuple[Any, Counter[Any]]:
    store = InMemoryLightningStore()
    apo = await run(store, Editor())
    assert apo.state is not None
    assert apo.state.spent.calls == CALLS
    assert apo.state.best != "v0"
    return outcome(apo), await rollouts(store)


@pytest.mark.parametrize("dies_at", range(1, CALLS + 1))
async def test_it_ends_as_if_it_had_not_been_killed(undisturbed: Any, dies_at: int):
    store = InMemoryLightningStore()
    killed = await run(store, Editor(dies_at))
    assert killed.state is not None
    assert killed.state.rounds < 2
    resumed = await run(store, Editor())
    assert outcome(resumed) == undisturbed[0]
    made = await rollouts(store)
    assert set(made.values()) == {1}
    assert made == undisturbed[1]
    assert sum(made.values()) >= ROLLOUTS
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources["prompt"] == resumed.get_best_prompt()


async def test_killed_again_and_again_it_still_gets_there(undisturbed: Any):
    store = InMemoryLightningStore()
    for dies_at in (1, 2, 3, 1, 2, 3, 1):
        killed = await run(store, Editor(dies_at))
        assert killed.state is not None
        assert killed.state.rounds < 2
    apo = await run(store, Editor())
    assert outcome(apo) == undisturbed[0]
    assert await rollouts(store) == undisturbed[1]


async def test_a_run_does_not_go_on_with_another_prompt():
    store = InMemoryLightningStore()
    await run(store, Editor(dies_at=2))
    with pytest.raises(ConfigError, match="started with another prompt"):
        await run(store, Editor(), prompt="{question}?")


async def test_a_run_does_not_go_on_with_other_tasks():
    """Rewards are kept by the number of the task, so those of two datasets would be mixed."""
    store = InMemoryLightningStore()
    await run(store, Editor(dies_at=2))
    with pytest.raises(ConfigError, match="val_dataset: the run 'rooms' was started with other"):
        await run(store, Editor(), val=range(1, 7))


async def test_a_finished_run_goes_on_with_more_rounds():
    store = InMemoryLightningStore()
    two = await run(store, Editor(), beam_rounds=1)
    assert two.state is not None
    session = await StoredRun.open(store, "rooms")
    assert not two.has_more_to_do(session)
    assert APO(beam_rounds=2).has_more_to_do(session)
    more = await run(store, Editor())
    undisturbed = await run(InMemoryLightningStore(), Editor())
    assert outcome(more) == outcome(undisturbed)


@pytest.mark.parametrize("fails_at", range(1, 17))
async def test_it_ends_as_if_no_save_had_failed(undisturbed: Any, monkeypatch: Any, fails_at: int):
    store, saves = InMemoryLightningStore(), iter(range(1, 100))
    save = StoredRun.save

    async def failing(self: StoredRun, *args: Any, **kwargs: Any) -> None:
        if next(saves) == fails_at:
            raise ConnectionError("the store is gone")
        await save(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StoredRun, "save", failing)
        with pytest.raises((ConnectionError, ExceptionGroup)):
            await run(store, Editor())
    resumed = await run(store, Editor())
    assert outcome(resumed) == undisturbed[0]
    assert await rollouts(store) == undisturbed[1]


@pytest.mark.parametrize("sizes", [{"branch_factor": 2}, {"beam_width": 1}, {"val_batch_size": 2}])
async def test_a_run_does_not_go_on_with_other_sizes(sizes: dict[str, Any]):
    store = InMemoryLightningStore()
    await run(store, Editor(), beam_rounds=1)
    with pytest.raises(ConfigError, match=f"started with other {next(iter(sizes))}; resume it"):
        await run(store, Editor(), **sizes)


async def test_other_sizes_are_noticed_in_a_state_of_an_older_version():
    store = InMemoryLightningStore()
    await run(store, Editor())
    session = await StoredRun.open(store, "rooms")
    del session.state["plan"]
    await session.save(session.state)
    with pytest.raises(ConfigError, match="started with other beam_width or branch_factor"):
        await run(store, Editor(), beam_width=3, beam_rounds=4)
    more = await run(store, Editor(), beam_rounds=3)
    assert more.state is not None
    assert more.state.plan["beam_width"] == 2


async def test_one_failed_call_does_not_end_a_resumed_round():
    store = InMemoryLightningStore()
    killed = await run(store, Editor(dies_at=3))
    assert [one.version for one in killed.history] == ["v0", "v1"]
    resumed = await run(store, Editor(fails_at=[1]))
    assert resumed.state is not None
    assert not resumed.state.stopped
    assert resumed.state.rounds == 2
    assert resumed.history[2].rejected == "no critique: RuntimeError: HTTP 429"


async def test_a_run_without_answers_asks_again(undisturbed: Any):
    store = InMemoryLightningStore()
    with pytest.raises(RunFailedError, match="APO got no usable prompt in 2 proposals"):
        await run(store, Editor(fails_at=range(100)))
    resumed = await run(store, Editor())
    assert outcome(resumed) == undisturbed[0]
    assert await rollouts(store) == undisturbed[1]


class Losing(InMemoryLightningStore):
    """A store whose runners lose the proxy in the first rollout of some batches."""

    lost = "v1-round-1"

    async def update_attempt(self, rollout_id: str, *args: Any, **kwargs: Any) -> Any:
        rollout = await self.get_rollout_by_id(rollout_id)
        labels = (rollout and rollout.metadata) or {}
        if (labels.get("batch"), labels.get("index")) == (self.lost, 0):
            lost = {INFRASTRUCTURE: "proxy", "repeatable": False}
            kwargs |= {"status": "failed", "metadata": lost}
        return await super().update_attempt(rollout_id, *args, **kwargs)


async def test_what_was_lost_is_measured_again_under_another_name(monkeypatch: Any):
    store, saves = Losing(), iter(range(1, 100))
    save = StoredRun.save

    async def failing(self: StoredRun, state: Any, *args: Any, **kwargs: Any) -> None:
        if "v2-round-1" in state["batches"] and next(saves) == 2:
            raise ConnectionError("the store is gone")
        await save(self, state, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StoredRun, "save", failing)
        with pytest.raises((ConnectionError, ExceptionGroup)):
            await run(store, Editor())
    resumed = await run(store, Editor())
    assert resumed.state is not None
    assert resumed.state.batches["v1-round-1-2"] == 1
    pluses = {one.version: one.prompt.count("+") for one in resumed.history}
    for one in resumed.history:
        assert one.rewards == {row: float(pluses[one.version] > row % 3) for row in one.rewards}


async def test_a_search_without_further_answers_fails_and_can_be_resumed(undisturbed: Any):
    store = InMemoryLightningStore()
    with pytest.raises(RunFailedError, match="APO: the models gave no answer in round 2: "):
        await run(store, Editor(fails_at=range(5, 100)))
    latest = await store.get_latest_resources()
    assert latest is not None
    assert "+" in latest.resources["prompt"].template  # pyright: ignore
    resumed = await run(store, Editor())
    assert outcome(resumed) == undisturbed[0]


async def test_a_run_that_stopped_at_a_limit_goes_on_with_a_higher_one_only():
    store, limited = InMemoryLightningStore(), {**SIZES, "max_calls": 4}
    stopped = await run(store, Editor(), **limited)
    assert stopped.state is not None
    assert stopped.state.stopped == "max_calls = 4 are made"
    session = await StoredRun.open(store, "rooms")
    assert not APO(**limited).has_more_to_do(session)
    assert APO(**{**limited, "max_calls": 9}).has_more_to_do(session)
    more = await run(store, Editor())
    assert more.state is not None
    assert more.state.rounds == 2
    assert not (await StoredRun.open(store, "rooms")).state["stopped"]
