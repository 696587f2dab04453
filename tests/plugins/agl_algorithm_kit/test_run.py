"""A resumed run enqueues no task twice and loses none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agl_algorithm_kit import Baseline, StoredRun, run_batch, stored_run as run_module, stored_runs
from agl_core.algorithm import Algorithm, Run, algo
from agl_core.errors import InvalidArgumentError, StoreUnavailableError
from agl_core.status import RUNNING_ATTEMPTS
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import (
    Checkpoint,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    RolloutConfig,
)
from agl_store_memory import InMemoryLightningStore

PROMPT: NamedResources = {"prompt": PromptTemplate(template="{q}", engine="f-string")}


def requests(number: int) -> list[EnqueueRolloutRequest]:
    return [EnqueueRolloutRequest(input=i, metadata={"mine": i}) for i in range(number)]


@asynccontextmanager
async def working(
    store: LightningStore, end: Callable[[Any], dict[str, Any]] | None = None
) -> AsyncIterator[list[Any]]:
    """Run a worker that ends every attempt at once; yield the list of its inputs."""
    seen: list[Any] = []

    async def work() -> None:
        while True:
            claimed = await store.dequeue_rollout("Worker-0", wait=10)
            if claimed is not None:
                seen.append(claimed.input)
                ending: dict[str, Any] = end(claimed) if end else {"status": "succeeded"}
                await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, **ending)

    task = asyncio.create_task(work())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_the_state_and_the_metrics_are_restored(quick_look):
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    assert (run.state, run.metrics, run.finished) == (None, {}, False)
    await run.save({"epoch": 1}, metrics={"reward": 0.25, "loss": 2.0})
    await run.save({"epoch": 2}, metrics={"reward": 0.5})
    again = await StoredRun.open(store, "night")
    assert again.state == {"epoch": 2}
    assert again.metrics == {"reward": 0.5, "loss": 2.0}
    assert not again.finished
    await again.finish()
    assert (await StoredRun.open(store, "night")).finished
    assert (await StoredRun.open(store, "day")).state is None
    assert list(await stored_runs(store)) == ["night", "day"]
    assert await store.get_latest_resources() is None


async def test_the_state_is_a_json_value():
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    state = {"pair": (1, 2)}
    await run.save(state)
    state["pair"] = (3, 4)
    assert run.state == {"pair": [1, 2]}
    assert (await StoredRun.open(store, "night")).state == {"pair": [1, 2]}
    with pytest.raises(InvalidArgumentError, match="the state has no JSON form"):
        await run.save(object())
    assert (await StoredRun.open(store, "night")).state == {"pair": [1, 2]}


async def test_a_run_without_a_name_stores_nothing():
    store = InMemoryLightningStore()
    run = await Run.open(store)
    await run.save({"epoch": 1})
    await run.finish()
    assert (await store.query_resources()).total == 0
    (rollout,) = await run.enqueue(requests(1))
    assert rollout.metadata == {"mine": 0}


@pytest.mark.parametrize("name", ["a b", "a/b", "ü:", "x" * 101])
def test_a_name_with_other_characters_is_refused(name):
    with pytest.raises(InvalidArgumentError, match="a run's name is made of"):
        StoredRun(InMemoryLightningStore(), name)


async def test_tasks_are_not_enqueued_twice():
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    first = await run.enqueue(requests(3), batch="epoch-0")
    assert first[1].metadata == {"mine": 1, "run": "night", "batch": "epoch-0", "index": 1}
    await store.enqueue_rollout("of no run")
    await store.update_rollout(first[0].rollout_id, status="succeeded")

    again = await StoredRun.open(store, "night")
    second = await again.enqueue(requests(5), batch="epoch-0")
    assert [r.rollout_id for r in second[:3]] == [r.rollout_id for r in first]
    assert [r.status for r in second] == ["succeeded", *["queuing"] * 4]
    assert [r.input for r in second] == [0, 1, 2, 3, 4]
    other = await again.enqueue(requests(1), batch="epoch-1")
    assert (await store.query_rollouts()).total == 7
    assert other[0].rollout_id not in {r.rollout_id for r in second}
    of_another = await (await StoredRun.open(store, "day")).enqueue(requests(1), batch="epoch-0")
    assert of_another[0].rollout_id != first[0].rollout_id


async def test_a_batch_that_could_not_be_enqueued_may_be_tried_again():
    class Failing(InMemoryLightningStore):
        fails = True

        async def enqueue_many_rollouts(self, requests: Any) -> Any:
            if self.fails:
                raise StoreUnavailableError("down")
            return await super().enqueue_many_rollouts(requests)

    store = Failing()
    run = await StoredRun.open(store, "night")
    with pytest.raises(StoreUnavailableError):
        await run.enqueue(requests(2), batch="a")
    store.fails = False
    assert len(await run.enqueue(requests(2), batch="a")) == 2


async def test_a_batch_needs_a_unique_name():
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    with pytest.raises(InvalidArgumentError, match="batches of the run 'night' need a name"):
        await run.enqueue(requests(1))
    await run.enqueue(requests(2), batch="a")
    with pytest.raises(InvalidArgumentError, match="the run 'night' has two batches 'a'"):
        await run.enqueue(requests(1), batch="a")
    await run.enqueue(requests(1), batch="a", first=2)
    assert (await store.query_rollouts()).total == 3


async def test_a_snapshot_is_the_latest_and_not_stored_twice():
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    assert await run.put_resources("seed", PROMPT) == "night/seed"
    again = await StoredRun.open(store, "night")
    await again.put_resources("seed", PROMPT)
    latest = await store.get_latest_resources()
    assert latest is not None
    assert (latest.resources_id, latest.version) == ("night/seed", 1)
    await store.update_resources("newer", PROMPT)
    await again.put_resources("seed", PROMPT)
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources_id == "night/seed"


async def test_an_interrupted_batch_is_resumed():
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    batch = asyncio.ensure_future(
        run_batch(store, list(range(4)), resources=PROMPT, run=run, name="val")
    )
    claimed = await store.dequeue_rollout("Worker-0", wait=10)
    assert claimed is not None
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    batch.cancel()
    await asyncio.wait((batch,))
    assert [r.status for r in await store.query_rollouts()] == ["succeeded", *["queuing"] * 3]

    again = await StoredRun.open(store, "night")
    async with working(store) as seen:
        outcome = await run_batch(store, list(range(4)), resources=PROMPT, run=again, name="val")
    assert seen == [1, 2, 3]
    assert [o.rollout.input for o in outcome] == [0, 1, 2, 3]
    assert outcome.statuses() == {"succeeded": 4}
    assert outcome.resources_id == "night/val"
    assert (await store.query_rollouts()).total == 4


@pytest.fixture
def quick_look(monkeypatch):
    monkeypatch.setattr(StoredRun, "look_seconds", 0.05)


@pytest.mark.parametrize("silent", [False, True])
async def test_the_rollout_of_a_dead_worker_is_retried(quick_look, monkeypatch, silent):
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    (lost,) = await run.enqueue(requests(1), batch="a")
    await store.dequeue_rollout("Worker-1" if silent else "Worker-0")
    if silent:
        monkeypatch.setattr(run_module, "_SILENCE_SECONDS", 0.2)
    again = await StoredRun.open(store, "night")
    (adopted,) = await again.enqueue(requests(1), batch="a")
    assert adopted.status == "preparing"
    async with working(store):  # uses the name Worker-0 again
        (done,) = await again.wait_for_rollouts([adopted.rollout_id], timeout=20)
    assert done.rollout_id == lost.rollout_id
    assert done.status == "succeeded"
    attempts = (await store.query_attempts(lost.rollout_id)).items
    assert [attempt.status for attempt in attempts] == ["failed", "succeeded"]
    assert attempts[0].metadata == {"error": "its worker is gone"}


async def test_a_wait_in_short_slices_retries_too(quick_look):
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    (lost,) = await run.enqueue(requests(1), batch="a")
    await store.dequeue_rollout("Worker-0")
    again = await StoredRun.open(store, "night")
    await again.enqueue(requests(1), batch="a")
    async with working(store), asyncio.timeout(20):
        while not (done := await again.wait_for_rollouts([lost.rollout_id], timeout=0.01)):
            await asyncio.sleep(0)
    assert done[0].status == "succeeded"


async def test_an_attempt_of_a_living_worker_is_adopted(quick_look):
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    (rollout,) = await run.enqueue(requests(1), batch="a")
    claimed = await store.dequeue_rollout("Worker-0")
    assert claimed is not None
    again = await StoredRun.open(store, "night")
    await again.enqueue(requests(1), batch="a")
    assert await again.wait_for_rollouts([rollout.rollout_id], timeout=0.5) == []
    waiting = asyncio.ensure_future(again.wait_for_rollouts([rollout.rollout_id]))
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    (done,) = await asyncio.wait_for(waiting, 10)
    assert done.status == "succeeded"
    assert len((await store.query_attempts(rollout.rollout_id)).items) == 1


@pytest.mark.parametrize("known", [False, True])
async def test_a_worker_whose_record_follows_its_claim_is_not_gone(quick_look, monkeypatch, known):
    """A store without transactions writes the worker's record after the claim."""
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    (rollout,) = await run.enqueue(requests(1), batch="a")
    if known:
        await store.dequeue_rollout("Worker-0", wait=0)  # an earlier one, of another algorithm
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        (rollout,) = await run.enqueue(requests(1), batch="b")
    before = await store.query_workers()
    await store.dequeue_rollout("Worker-0")

    async def query_workers(**_):
        return before

    monkeypatch.setattr(store, "query_workers", query_workers)
    assert await run.wait_for_rollouts([rollout.rollout_id], timeout=0.5) == []
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    assert attempt.status == "preparing"


async def test_an_attempt_that_ends_after_it_was_given_up_counts(monkeypatch):
    """Its runner was alive, and wrote its status between the end and the look at its attempt."""
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    (rollout,) = await run.enqueue(requests(1), batch="a")
    await store.dequeue_rollout("Worker-0")
    gone = {"error": "its worker is gone"}
    await store.update_attempt(rollout.rollout_id, "latest", status="failed", metadata=gone)
    look = store.get_latest_attempt

    async def get_latest_attempt(rollout_id):
        monkeypatch.undo()
        await store.update_attempt(rollout_id, "latest", status="succeeded")
        return await look(rollout_id)

    monkeypatch.setattr(store, "get_latest_attempt", get_latest_attempt)
    (done,) = await run.wait_for_rollouts([rollout.rollout_id], timeout=20)
    assert done.status == "succeeded"


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
async def test_the_clock_of_the_store_may_differ(quick_look, agl_clock, ahead):
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    (rollout,) = await run.enqueue(requests(1), batch="a")
    await store.dequeue_rollout("Worker-0")
    await store.update_worker("Worker-0", {})
    agl_clock.advance(ahead)  # what the store wrote is from another clock
    assert await run.wait_for_rollouts([rollout.rollout_id], timeout=0.2) == []
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    assert attempt.status == "preparing"


async def test_attempts_of_a_living_worker_with_several_are_adopted(quick_look):
    """The worker's record names the last of them alone; its heartbeats list all."""
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    enqueued = await run.enqueue(requests(3), batch="a")
    names = [rollout.rollout_id for rollout in enqueued]
    await store.update_worker("Worker-0", {RUNNING_ATTEMPTS: []})
    claimed = await store.dequeue_many_rollouts(limit=3, worker_id="Worker-0")
    again = await StoredRun.open(store, "night")
    await again.enqueue(requests(3), batch="a")
    assert await again.wait_for_rollouts(names, timeout=0.5) == []
    running = [rollout.attempt.attempt_id for rollout in claimed]
    await store.update_worker("Worker-0", {RUNNING_ATTEMPTS: running})
    assert await again.wait_for_rollouts(names, timeout=0.5) == []
    for name in names:
        await store.update_attempt(name, "latest", status="succeeded")
    done = await asyncio.wait_for(again.wait_for_rollouts(names), 10)
    assert [rollout.status for rollout in done] == ["succeeded"] * 3
    attempts = [await store.query_attempts(name) for name in names]
    assert [len(each) for each in attempts] == [1, 1, 1]


@pytest.mark.parametrize(
    ("said", "attempts"),
    [
        ({"error": "its runner died"}, 4),
        ({"error": "stopped", "error_type": "AgentCancelledError"}, 4),
        ({"error": "ValueError: no", "error_type": "ValueError"}, 1),
        ({}, 1),
    ],
)
async def test_only_rollouts_that_lost_their_runner_are_retried_up_to_a_limit(
    quick_look, said, attempts
):
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    (rollout,) = await run.enqueue(requests(1), batch="a")
    async with working(store, lambda _: {"status": "failed", "metadata": said}):
        (done,) = await run.wait_for_rollouts([rollout.rollout_id], timeout=20)
    assert done.status == "failed"
    assert len((await store.query_attempts(rollout.rollout_id)).items) == attempts


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
async def test_a_resumed_run_measures_again_what_the_infrastructure_failed(quick_look, ended):
    store = InMemoryLightningStore()
    tasks = list(range(3))
    endings = {
        0: {"status": "succeeded"},
        1: {"status": "failed", "metadata": {"error": "no", "error_type": "ValueError"}},
        2: {
            "status": "failed",
            "metadata": {
                "infrastructure": "proxy",
                "repeatable": False,
                "error": "lost",
                "error_type": "ConnectError",
            },
        },
    }
    run = await StoredRun.open(store, "night")
    async with working(store, lambda claimed: endings[claimed.input]):
        first = await run_batch(store, tasks, run=run, name="val")
    assert [one.infrastructure for one in first] == [None, None, "proxy"]
    if ended == "cancelled":
        await store.update_rollout(first[2].rollout.rollout_id, status="cancelled")
    again = await StoredRun.open(store, "night")
    async with working(store) as seen:
        second = await run_batch(store, tasks, run=again, name="val")
    assert seen == [2]
    assert [one.infrastructure for one in second] == [None] * 3
    assert second.statuses() == {"succeeded": 2, "failed": 1}
    assert (await store.query_rollouts()).total == 3


@pytest.mark.parametrize(("limit", "ending"), [(None, "succeeded"), (60.0, "failed")])
async def test_a_claim_that_reached_no_runner_is_retried(quick_look, limit, ending):
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    config = RolloutConfig(unresponsive_seconds=limit)
    (rollout,) = await run.enqueue([EnqueueRolloutRequest(input=1, config=config)], batch="a")
    await store.dequeue_rollout("Worker-0")
    await store.update_attempt(rollout.rollout_id, "latest", status="unresponsive")
    async with working(store):
        (done,) = await run.wait_for_rollouts([rollout.rollout_id], timeout=20)
    assert done.status == ending


async def test_the_baseline_is_resumed(quick_look):
    store = InMemoryLightningStore()
    tasks = list(range(6))

    async def session(stop_after: int | None) -> list[Any]:
        baseline = Baseline(n_epochs=2, max_queue_length=1, span_verbosity="none")
        baseline.set_store(store)
        baseline.set_initial_resources(PROMPT)
        baseline.set_run(await StoredRun.open(store, "night"))
        done: list[int] = []

        def end(claimed: Any) -> dict[str, Any]:
            done.append(claimed.input)
            if len(done) == stop_after:
                going.cancel()
            return {"status": "succeeded"}

        async with working(store, end) as seen:
            going = asyncio.ensure_future(baseline.run(tasks))
            await asyncio.wait((going,))
            return seen

    first = await session(7)
    second = await session(None)
    assert 7 <= len(first) < 12
    assert first + second == [*tasks, *tasks]
    assert {r.status for r in await store.query_rollouts()} == {"succeeded"}
    assert {r.resources_id for r in await store.query_rollouts()} == {"night/default"}


def test_a_finished_run_that_is_asked_for_more_goes_on(caplog: pytest.LogCaptureFixture):
    from agl_core.agent import rollout

    store = InMemoryLightningStore()
    done: list[int] = []

    class Steps(Algorithm):
        def __init__(self, steps: int) -> None:
            self.steps = steps

        def has_more_to_do(self, run: Run) -> bool:
            return self.steps > run.state

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            run = self.get_run()
            for step in range(run.state or 0, self.steps):
                await run_batch(self.get_store(), [step], run=run, name=f"step-{step}")
                await run.save(step + 1)

    @rollout
    def agent(task: int) -> float:
        done.append(task)
        return 1.0

    for steps in (2, 2, 3):
        Trainer(algorithm=Steps(steps), strategy="shm", store=store, run="night").fit(agent)
        if steps == 2:
            assert done == [0, 1]
    assert done == [0, 1, 2]
    assert caplog.text.count("The run 'night' is finished; nothing to do") == 1
    assert asyncio.run(StoredRun.open(store, "night")).finished


def test_a_finished_baseline_that_is_asked_for_more_epochs_goes_on(
    caplog: pytest.LogCaptureFixture,
):
    from agl_core.agent import rollout

    store = InMemoryLightningStore()
    done: list[int] = []

    @rollout
    def agent(task: int) -> float:
        done.append(task)
        return 1.0

    for epochs in (1, 1, 3):
        baseline = Baseline(n_epochs=epochs)
        Trainer(algorithm=baseline, strategy="shm", store=store, run="night").fit(agent, [1, 2])
        assert sorted(done) == sorted([1, 2] * epochs), "no epoch runs twice"
    assert caplog.text.count("The run 'night' is finished; nothing to do") == 1


def test_a_trainer_resumes_its_run_but_not_a_finished_one():
    from agl_core.agent import rollout

    store = InMemoryLightningStore()
    calls: list[str] = []

    @algo
    async def stumble(store: LightningStore, run: Run) -> None:
        calls.append(f"from {run.state}")
        await run_batch(store, [1, 2], resources=PROMPT, run=run, name="first")
        if run.state is None:
            await run.save({"step": 1}, metrics={"reward": 1.0})
            raise RuntimeError("stumbled")
        await run_batch(store, [3], resources=PROMPT, run=run, name="second")

    @rollout
    def agent(task: int, prompt_template: PromptTemplate) -> float:
        calls.append(f"task {task}")
        return float(task)

    def train() -> None:
        trainer = Trainer(
            algorithm=stumble,
            store=store,
            strategy="shm",
            run="night",
            tracer="dummy",
        )
        trainer.fit(agent)

    with pytest.raises(RuntimeError, match="stumbled"):
        train()
    train()
    train()
    assert calls == ["from None", "task 1", "task 2", "from {'step': 1}", "task 3"]
    kept = asyncio.run(stored_runs(store))
    assert kept == {
        "night": Checkpoint(
            state={"step": 1}, metrics={"reward": 1.0}, finished=True, resources_id="night/second"
        )
    }


def test_an_algorithm_without_a_trainer_has_a_run_without_a_name():
    algorithm = Algorithm()
    algorithm.set_store(InMemoryLightningStore())
    assert algorithm.get_run().name == ""
