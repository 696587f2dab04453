"""Promotions on live traffic: assignment at enrolment, delayed rewards, roll-back, kills."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import agl_promote.promotion as promotions
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.store import LightningStore, current_request_key, intercept
from agl_core.types import EnqueueRolloutRequest, Span
from agl_promote import Decision, LiveAssignment, LivePlan, LivePointer, LiveTrial, Promotion
from agl_promote.promotion import label_of
from agl_promote.traffic import trials_of, watch_state
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_promote.conftest import REWARD, runner, with_prompts
from tests.plugins.agl_promote.test_promotion import Kill, Killed, noise

LOOK = 0.02  # seconds


@pytest.fixture(autouse=True)
def owners_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of these tests are this one, and count as dead once they are killed."""
    monkeypatch.setattr(promotions.psutil, "pid_exists", lambda pid: False)


@pytest.fixture
async def store() -> LightningStore:
    return intercept(await with_prompts(InMemoryLightningStore()), LiveAssignment())


def live_plan(**options: Any) -> LivePlan:
    given = {
        "name": "booking",
        "champion": "night/v0",
        "candidate": "night/v1",
        "reward_range": (0, 1),
        "deadline": 60.0,
        "max_episodes": 400,
        "watch": 0,
    }
    return LivePlan(**{**given, **options})


async def begin(store: LightningStore, plan: LivePlan) -> None:
    """Make a promotion whose trial is on, and that no process serves."""
    await Promotion.create(store, plan)
    serving = asyncio.create_task(serve(store))
    while (await LivePointer.read(store, plan.name)).trial is None:
        await asyncio.sleep(LOOK)
    serving.cancel()
    await asyncio.wait({serving})


async def serve(store: LightningStore, name: str = "booking") -> Promotion[LivePlan]:
    promotion = await Promotion.open(store, name)
    await LiveTrial(promotion, LOOK).run()
    return promotion


@asynccontextmanager
async def traffic(store: LightningStore) -> AsyncIterator[None]:
    """Episodes, one after another; each is enqueued when the one before was claimed."""

    async def work() -> None:
        number = 0
        while True:
            labels = {"episode": f"ticket-{number}"}
            await store.enqueue_rollout({"id": number}, None, "live:booking", metadata=labels)
            number += 1
            while (await store.query_rollouts(status_in=["queuing"], limit=0)).total:
                await asyncio.sleep(0)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.wait({working})


def better(task: Any, arm: str) -> float:
    return float(noise(task, arm) < (0.9 if arm == "night/v1" else 0.4))


def equal(task: Any, arm: str) -> float:
    return float(noise(task, arm) < 0.5)


# -- assignment ------------------------------------------------------------------------------------


async def test_without_a_trial_a_rollout_gets_what_is_live(store: LightningStore):
    await (await LivePointer.read(store, "booking")).point_to(store, "night/v0", "first")
    made = await store.enqueue_rollout({}, resources_id="live:booking")
    assert (made.resources_id, made.metadata) == ("live:booking", {})


async def test_a_trial_assigns_each_episode_once(store: LightningStore):
    await begin(store, live_plan(share=0.3))
    made = [
        await store.enqueue_rollout({}, resources_id="live:booking", metadata={"user": number})
        for number in range(200)
    ]
    arms = [one.resources_id for one in made]
    assert set(arms) == {"night/v0", "night/v1"}
    assert 35 <= arms.count("night/v1") <= 85
    labels = made[7].metadata or {}
    assert labels["user"] == 7
    assert labels["trial"].startswith("booking:")
    again = [
        await store.start_rollout(
            {}, resources_id="live:booking", metadata={"episode": labels["episode"]}
        )
        for _ in range(3)
    ]
    assert {one.resources_id for one in again} == {made[7].resources_id}


async def test_a_batch_is_assigned_by_rollout_and_keeps_its_order(store: LightningStore):
    await begin(store, live_plan())
    requests = [
        EnqueueRolloutRequest(input={"id": 0}, resources_id="live:booking"),
        EnqueueRolloutRequest(input={"id": 1}, resources_id="night/v0"),
        EnqueueRolloutRequest(input={"id": 2}, resources_id="live:booking", mode="test"),
        *(EnqueueRolloutRequest(input={}, resources_id="live:booking") for _ in range(60)),
    ]
    made = await store.enqueue_many_rollouts(requests)
    assert made[1].metadata == {}
    assert made[2].resources_id == "live:booking"  # an evaluation is not traffic
    assert {one.resources_id for one in made[3:]} == {"night/v0", "night/v1"}
    assert requests[0].resources_id == "live:booking"  # the caller's own


async def test_a_call_that_is_repeated_gets_the_same_version(store: LightningStore):
    await begin(store, live_plan())
    for number in range(20):
        reset = current_request_key.set(f"key-{number}")
        try:
            first, again = [await store.enqueue_rollout({}, None, "live:booking") for _ in range(2)]
        finally:
            current_request_key.reset(reset)
        assert first == again


# -- decisions -------------------------------------------------------------------------------------


async def test_a_better_candidate_goes_live_and_a_holdback_watches_it(store: LightningStore):
    await Promotion.create(store, live_plan(watch=30))
    async with runner(store, better), traffic(store):
        promotion = await serve(store)
    decision = promotion.decision
    assert decision is not None
    assert (decision.kind, decision.pairs) == ("promote", promotion.pairs)
    assert 0 <= decision.at_least < decision.gain
    live = await LivePointer.read(store, "booking")
    assert [one["resources_id"] for one in live.history] == ["night/v0", "night/v1"]
    assert live.trial is None
    assert len(promotion.recall("watched")) == 30
    assert promotion.recall("watch")["kind"] == "keep"
    served = await store.get_resources_by_id("live:booking")
    assert served is not None
    assert served.resources["prompt"].template == "night/v1"  # pyright: ignore
    assert (await serve(store)).decision == decision  # it is over: nothing happens


async def test_an_equal_candidate_stays_out(store: LightningStore):
    await Promotion.create(store, live_plan(max_episodes=150))
    async with runner(store, equal), traffic(store):
        decision = (await serve(store)).decision
    assert decision is not None
    assert (decision.kind, decision.pairs) == ("keep", 150)
    live = await LivePointer.read(store, "booking")
    assert (live.resources_id, live.trial) == ("night/v0", None)


async def test_a_version_that_gets_worse_after_its_promotion_is_rolled_back(store: LightningStore):
    await Promotion.create(store, live_plan(holdback=0.3, watch=2000))
    went_live = False

    def spoiled(task: Any, arm: str) -> float:
        if went_live:
            return float(arm == "night/v0")
        return better(task, arm)

    async def notice() -> None:
        nonlocal went_live
        while (await LivePointer.read(store, "booking")).resources_id != "night/v1":
            await asyncio.sleep(LOOK)
        went_live = True

    noticing = asyncio.create_task(notice())
    async with runner(store, spoiled), traffic(store):
        promotion = await serve(store)
    await noticing
    live = await LivePointer.read(store, "booking")
    versions = [one["resources_id"] for one in live.history]
    assert versions == ["night/v0", "night/v1", "night/v0"]
    assert live.history[-1]["why"] == "rolled back: night/v0 is shown to be better"
    assert live.trial is None
    assert promotion.recall("watch")["kind"] == "promote"
    assert watch_state(promotion, live) == "rolled back"
    with pytest.raises(InvalidArgumentError, match="nothing else was live"):
        await live.roll_back(store, "by hand")


async def test_a_watch_whose_verdict_comes_after_a_change_by_hand_has_ended(store: LightningStore):
    promotion = await Promotion.create(store, live_plan(watch=30))
    first = (await LivePointer.read(store, "booking")).beginning_with("night/v0", 0.0)
    assert watch_state(promotion, first) is None
    _, holdback = trials_of(promotion)
    shown = Decision("promote", 0.1, 0.2, 100, {}, "shown")
    await promotion.decide(shown, holdback)
    live = await LivePointer.read(store, "booking")
    assert watch_state(promotion, live) == "on"
    await promotion.renew(watch=shown._asdict())
    await promotion.release()
    live = await live.point_to(store, "night/v1", "by hand")
    served = await serve(store)
    now = await LivePointer.read(store, "booking")
    assert now == live, "nothing is rolled back"
    assert watch_state(served, now) == "ended"


async def test_the_next_trial_of_a_name_begins_once_the_watch_is_over(store: LightningStore):
    first = await Promotion.create(store, live_plan(watch=30))
    shown = Decision("promote", 0.1, 0.2, 100, {}, "shown")
    _, holdback = trials_of(first)
    await first.decide(shown, holdback)
    await first.release()
    planned = live_plan(champion="night/v1", candidate="night/v2", champion_version=2, watch=30)
    with pytest.raises(ConfigError, match="has decided and is not over"):
        await Promotion.create(store, planned)
    await first.renew(watch={**shown._asdict(), "kind": "keep"})
    await first.release()
    await serve(store)  # ends the watch
    second = await Promotion.create(store, planned)
    trial, holdback = trials_of(second)
    await second.decide(shown, holdback)
    live = await LivePointer.read(store, "booking")
    live = await live.roll_back(store, "rolled back: night/v0 is shown to be better")
    earlier = await Promotion.open(store, label_of("booking", first.digest))
    assert watch_state(earlier, live) == "kept", "what came later is not of this watch"
    with pytest.raises(ConfigError, match="is over"):
        await serve(store, earlier.label)
    episodes = [{"episode": f"user-{number}"} for number in range(200)]
    arms = [
        [one.enrol(labels, "")[0] == one.candidate for labels in episodes]
        for one in (trials_of(first)[0], trial)
    ]
    same = sum(one == other for one, other in zip(*arms, strict=True))
    assert 70 <= same <= 130, "the two trials assign independently"


async def test_an_open_episode_holds_back_those_after_it_until_its_deadline(
    store: LightningStore, monkeypatch: pytest.MonkeyPatch
):
    await begin(store, live_plan(deadline=1000.0, max_episodes=3))

    async def enrol(reward: float | None) -> tuple[str, str]:
        one = await store.start_rollout({}, resources_id="live:booking")
        ids = one.rollout_id, one.attempt.attempt_id
        if reward is not None:
            await give(ids, reward)
        await store.update_attempt(*ids, status="succeeded")
        return ids

    async def give(ids: tuple[str, str], reward: float, at: float | None = None) -> None:
        attributes = {**REWARD, "agentlightning.reward.0.value": reward}
        span = Span.from_attributes(
            name="agentlightning.annotation",
            attributes=attributes,
            rollout_id=ids[0],
            attempt_id=ids[1],
            sequence_id=1,
            start_time=at or time.time(),
        )
        await store.add_span(span)

    first = await enrol(0.5)
    second, third = await enrol(None), await enrol(1.0)
    serving = asyncio.create_task(serve(store))
    await asyncio.sleep(10 * LOOK)
    rows = (await Promotion.open(store, "booking")).recall("episodes")
    assert [(row[0], row[2]) for row in rows] == [(first[0], 0.5)]
    now = time.time()
    await give(second, 0.9, at=now + 1001)  # too late
    monkeypatch.setattr(time, "time", lambda: now + 1002)
    promotion = await serving
    rows = promotion.recall("episodes")
    assert [(row[0], row[2]) for row in rows[1:]] == [(second[0], 0.0), (third[0], 1.0)]


async def test_of_several_rollouts_of_an_episode_the_first_counts(store: LightningStore):
    await begin(store, live_plan(max_episodes=2))
    labels = {"episode": "ticket"}
    for metadata in (labels, labels, {"episode": "other"}):
        await store.enqueue_rollout({"id": 1}, None, "live:booking", metadata=metadata)
    async with runner(store, equal):
        promotion = await serve(store)
    rollouts = await store.query_rollouts()
    kept = [row[0] for row in promotion.recall("episodes")]
    assert kept == [rollouts[0].rollout_id, rollouts[2].rollout_id]


async def test_the_segment_and_the_other_reward_of_a_guardrail_are_kept(store: LightningStore):
    rails = [
        {"path": "input.country=nl", "margin": 0.5},
        {"path": "reward.format", "margin": 0.5},
    ]
    await begin(store, live_plan(max_episodes=2, guardrails=rails))
    for country in ("nl", "de"):
        one = await store.start_rollout({"country": country}, resources_id="live:booking")
        ids: dict[str, Any] = {"rollout_id": one.rollout_id, "attempt_id": one.attempt.attempt_id}
        attributes = {
            **REWARD,
            "agentlightning.reward.0.value": 0.5,
            "agentlightning.reward.1.name": "format",
            "agentlightning.reward.1.value": 1.0,
        }
        span = Span.from_attributes(name="r", attributes=attributes, sequence_id=1, **ids)
        await store.add_span(span)
        await store.update_attempt(**ids, status="succeeded")
    rows = (await serve(store)).recall("episodes")
    assert [row[3] for row in rows] == [
        {"reward.format": 1.0, "input.country=nl": 0.5},
        {"reward.format": 1.0},
    ]


async def test_a_reward_outside_the_range_is_an_error(store: LightningStore):
    await Promotion.create(store, live_plan())
    async with runner(store, lambda task, arm: 2.0), traffic(store):
        with pytest.RaisesGroup(
            pytest.RaisesExc(InvalidArgumentError, match="outside the declared range, 0 to 1")
        ):
            await serve(store)


async def test_a_trial_goes_on_when_old_rollouts_are_dropped(tmp_path):
    sqlite = pytest.importorskip("agl_store_sqlite")
    bare = await with_prompts(sqlite.SqliteLightningStore(tmp_path / "runs.db"))
    store = intercept(bare, LiveAssignment())
    await begin(store, live_plan(max_episodes=60))

    async def send(numbers: range) -> None:
        for number in numbers:
            await store.enqueue_rollout({"id": number}, resources_id="live:booking")
        while (await store.query_rollouts(status_in=["queuing", "preparing"], limit=0)).total:
            await asyncio.sleep(LOOK)

    async def counted() -> int:
        return (await Promotion.open(store, "booking")).pairs

    async with runner(store, equal):
        serving = asyncio.create_task(serve(store))
        await send(range(40))
        while await counted() < 40:
            await asyncio.sleep(LOOK)
        assert await bare.vacuum(keep_last=1) == 39  # pyright: ignore
        await send(range(40, 60))
        promotion = await serving
    assert promotion.pairs == 60
    await store.close()


async def test_traffic_that_passes_the_trial_by_is_named(store: LightningStore, caplog):
    await begin(store, live_plan(max_episodes=1, deadline=2))
    bare = store.store  # pyright: ignore  # as a program that opens the database itself
    serving = asyncio.create_task(serve(store))
    await asyncio.sleep(5 * LOOK)
    await bare.enqueue_rollout({}, None, "live:booking")
    await asyncio.sleep(5 * LOOK)
    await store.enqueue_rollout({"id": 0}, None, "live:booking")
    async with runner(store, equal):
        await serving
    assert "live traffic without a part in the trial" in caplog.text


# -- one process, and kills ------------------------------------------------------------------------


async def test_what_was_changed_by_hand_ends_the_trial(store: LightningStore):
    await begin(store, live_plan())
    live = await (await LivePointer.read(store, "booking")).roll_back(store, "by hand")
    assert (live.resources_id, live.trial) == ("night/v0", None)
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="was changed meanwhile")):
        await serve(store)


async def test_after_a_trial_that_ended_by_hand_the_next_plan_is_accepted(store: LightningStore):
    await begin(store, live_plan())
    with pytest.raises(ConfigError, match="has not decided"):
        await Promotion.create(store, live_plan(candidate="night/v2"))
    live = await (await LivePointer.read(store, "booking")).roll_back(store, "by hand")
    planned = live_plan(candidate="night/v2", champion_version=live.version)
    promotion = await Promotion.create(store, planned)
    earlier = await Promotion.open(store, label_of("booking", promotion.plan.follows))
    assert (earlier.plan.candidate, earlier.decision) == ("night/v1", None)


async def test_a_second_process_is_refused(store: LightningStore, monkeypatch):
    monkeypatch.setattr(promotions.psutil, "pid_exists", lambda pid: True)
    await Promotion.create(store, live_plan())
    serving = asyncio.create_task(serve(store))
    while (await LivePointer.read(store, "booking")).trial is None:
        await asyncio.sleep(LOOK)
    with pytest.raises(ConfigError, match="another process works on the promotion"):
        await serve(store)
    serving.cancel()
    await asyncio.wait({serving})


async def outcome_with_kills(chance: random.Random | None, reward_of: Any) -> list[Any]:
    """Serve a trial over the same episodes, killed several times; return its result."""
    store = intercept(await with_prompts(InMemoryLightningStore()), LiveAssignment())
    await Promotion.create(store, live_plan(max_episodes=120, watch=25, holdback=0.3))
    async with runner(store, reward_of), traffic(store):
        for _ in range(4 if chance else 0):
            try:
                await serve(intercept(store, Kill(chance.randrange(2, 300))))  # pyright: ignore
            except* Killed:
                pass
        promotion = await serve(store)
    live = await LivePointer.read(store, "booking")
    episodes = [row[1:] for row in promotion.recall("episodes")]
    return [promotion.decision, episodes, [one["resources_id"] for one in live.history], live.trial]


@pytest.mark.parametrize("reward_of", [better, equal])
async def test_a_killed_trial_decides_the_same_bit_by_bit(reward_of):
    undisturbed = await outcome_with_kills(None, reward_of)
    chance = random.Random(3)
    for _ in range(15):  # four kills each, at random calls
        assert await outcome_with_kills(chance, reward_of) == undisturbed
