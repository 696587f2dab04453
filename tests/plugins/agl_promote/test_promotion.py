"""Promotions in a store: decided once, by one process, and the same after any kill."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from typing import Any

import pytest
from pydantic import ValidationError

import agl_promote.promotion as promotions
from agl_algorithm_kit import StoredRun
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.store import Interceptor, StoreCall, intercept
from agl_core.types import Checkpoint, PromptTemplate
from agl_promote import Decision, Guardrail, LivePointer, Plan, Promotion, Trial, gain_at_least
from agl_promote.experiment import run_name
from agl_promote.known import earlier_uses, used_tasks
from agl_promote.promotion import label_of
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_promote.conftest import TASKS, decide, runner, with_prompts


def noise(task: Any, arm: str) -> float:
    digest = hashlib.blake2b(f"{task['id']}|{arm}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def better(task: Any, arm: str) -> float:
    return float(noise(task, arm) < (0.9 if arm == "night/v1" else 0.3))


def equal(task: Any, arm: str) -> float:
    return float(noise(task, arm) < 0.5)


@pytest.fixture(autouse=True)
def owners_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of these tests are this one, and count as dead once they are killed."""
    monkeypatch.setattr(promotions.psutil, "pid_exists", lambda pid: False)


@pytest.mark.parametrize("test", ["planned", "anytime"])
async def test_a_better_candidate_goes_live(plan, test):
    store = await with_prompts(InMemoryLightningStore())
    await store.add_resources({"prompt": PromptTemplate(template="other", engine="f-string")})
    await Promotion.create(store, plan(test=test))
    async with runner(store, better):
        decision = await decide(store)
    assert decision is not None
    assert decision.kind == "promote"
    assert 0 < decision.at_least < decision.gain
    live = await LivePointer.read(store, "booking")
    assert (live.resources_id, live.version) == ("night/v1", 1)
    served = await store.get_resources_by_id("live:booking")
    assert served is not None
    assert served.resources["prompt"] == PromptTemplate(template="night/v1", engine="f-string")
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources["prompt"].template == "other"  # pyright: ignore


async def test_an_equal_candidate_stays_out(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    async with runner(store, equal):
        decision = await decide(store)
    assert decision is not None
    assert (decision.kind, decision.pairs) == ("keep", 60)
    assert (await LivePointer.read(store, "booking")).resources_id is None


async def test_a_candidate_that_crashes_counts_as_the_lowest_reward(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan(reward_range=(-5, 0), test="anytime"))
    async with runner(store, lambda task, arm: None if arm == "night/v1" else -1.0):
        decision = await decide(store)
    assert decision is not None
    assert decision.gain == pytest.approx(-4.0)
    assert decision.kind == "keep"


async def test_a_reward_outside_the_range_is_an_error(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    async with runner(store, lambda task, arm: 2.0):
        with pytest.RaisesGroup(
            pytest.RaisesExc(InvalidArgumentError, match="outside the declared range, 0 to 1")
        ):
            await decide(store)


USAGE = {"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 500}
"""Of each rollout; at the price of 1 and 2 per million it costs 0.002."""


@pytest.mark.parametrize(
    ("max_cost", "kind", "pairs"), [(0.1, "keep", 32), (10.0, "promote", None)]
)
async def test_a_budget_ends_without_a_promotion(plan, max_cost, kind, pairs):
    """A batch of 8 pairs costs 0.032: with 0.1, the fourth is the last that begins."""
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan(test="anytime", max_cost=max_cost, price=(1, 2)))

    def slightly(task: Any, arm: str) -> float:
        return float(task["id"] % 10 < (8 if arm == "night/v1" else 6))

    async with runner(store, better if pairs is None else slightly, USAGE):
        decision = await decide(store)
    assert decision is not None
    assert decision.kind == kind
    if pairs is not None:
        assert decision.pairs == pairs
        assert decision.why == "max_cost = 0.1 is spent, and not shown yet"
        assert (await store.query_rollouts(limit=0)).total == 2 * pairs
        assert (await decide(store)) == decision  # nothing more runs
        assert (await store.query_rollouts(limit=0)).total == 2 * pairs


@pytest.mark.parametrize(
    ("emitted", "kind"),
    [("format", "promote"), ("fromat", None)],
)
async def test_a_guarded_reward_that_no_rollout_has_is_an_error(plan, emitted, kind):
    """It would count as the lowest for both, and so would never get worse."""
    store = await with_prompts(InMemoryLightningStore())
    rail = {"path": "reward.format", "margin": 0.5}
    await Promotion.create(store, plan(test="anytime", guardrails=[rail]))
    second = {"agentlightning.reward.1.name": emitted, "agentlightning.reward.1.value": 1.0}
    async with runner(store, better, second):
        if kind is None:
            with pytest.RaisesGroup(
                pytest.RaisesExc(ConfigError, match=r"has the reward that is guarded as reward\.f")
            ):
                await decide(store)
            return
        decision = await decide(store)
    assert decision is not None
    assert decision.kind == kind


async def test_promotions_that_share_tasks_are_counted(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    await Promotion.create(store, plan(name="half", tasks=plan().tasks[:30]))
    await Promotion.create(store, plan(name="other", tasks=["a", "b"]))
    assert await earlier_uses(store, plan().tasks) == {"booking": 60, "half": 30}


class Killed(BaseException):
    """The process is gone."""


class Kill(Interceptor):
    """Fails every call after a number of them, as for a process that was killed."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    async def around(self, call: StoreCall, next: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return await next(call)


async def killed_and_resumed(plan: Plan, reward_of: Any, chance: random.Random) -> Any:
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan)
    async with runner(store, reward_of):
        for _ in range(3):
            try:
                await decide(intercept(store, Kill(chance.randrange(3, 60))))
            except* Killed:
                pass
        decision = await decide(store)
    live = await LivePointer.read(store, "booking")
    promoted = decision is not None and decision.kind == "promote"
    assert [one["resources_id"] for one in live.history] == ["night/v0", "night/v1"] * promoted
    assert (await store.query_rollouts()).total == 2 * len(
        {r.input["id"] for r in await store.query_rollouts()}
    )
    return decision


@pytest.mark.parametrize(("test", "reward_of"), [("planned", better), ("anytime", equal)])
async def test_a_killed_promotion_decides_the_same_bit_by_bit(plan, test, reward_of):
    rail = {"path": "input.country", "margin": 0.9}
    segments = ["input.country=de", "input.country=nl"]
    made = plan(test=test, guardrails=[rail], segments=segments)
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, made)
    async with runner(store, reward_of):
        undisturbed = await decide(store)
    assert undisturbed is not None
    chance = random.Random(1)
    for _ in range(50):  # up to three kills each, at random calls
        assert await killed_and_resumed(made, reward_of, chance) == undisturbed


async def test_a_second_plan_of_a_name_is_refused(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    with pytest.raises(ConfigError, match="there is a promotion 'booking' already"):
        await Promotion.create(store, plan(alpha=0.025))


def next_plan(plan: Any) -> Plan:
    """The plan after the one of the fixture has promoted."""
    return plan(champion="night/v1", champion_version=1, candidate="night/v2")


def ever_better(task: Any, arm: str) -> float:
    return int(arm[-1]) / 2


async def test_once_a_promotion_is_over_the_next_plan_of_its_name_is_accepted(plan):
    store = await with_prompts(InMemoryLightningStore())
    first = await Promotion.create(store, plan())
    async with runner(store, ever_better):
        decided = await decide(store)
        second = await Promotion.create(store, next_plan(plan))
        decision = await decide(store)
    assert decided is not None
    assert decision is not None
    assert decision.kind == "promote"
    live = await LivePointer.read(store, "booking")
    assert [one["resources_id"] for one in live.history] == ["night/v0", "night/v1", "night/v2"]
    assert second.plan.follows == first.digest
    earlier = await Promotion.open(store, label_of("booking", first.digest))
    assert (earlier.decision, earlier.digest) == (decided, first.digest)
    assert earlier.is_applied(live)
    with pytest.raises(ConfigError, match="is over; agl promote show shows it"):
        await earlier.acquire()
    assert (await earlier_uses(store, plan().tasks)) == {"booking": 60, earlier.label: 60}
    runs = [(one.metadata or {})["run"] for one in await store.query_rollouts()]
    # Each decides after 15 pairs, that is in its second batch.
    assert [runs.count(run_name(one)) for one in (first, second)] == [32, 32]


async def test_a_plan_that_is_made_again_decides_on_new_rollouts(plan):
    store = await with_prompts(InMemoryLightningStore())
    digests: list[str] = []
    async with runner(store, equal):
        for number in range(3):
            digests.append((await Promotion.create(store, plan())).digest)
            decision = await decide(store)
            assert decision is not None
            assert decision.kind == "keep"
            assert (await store.query_rollouts(limit=0)).total == 120 * (number + 1)
    assert len(set(digests)) == 3
    for digest in digests[:2]:
        assert (await Promotion.open(store, label_of("booking", digest))).decision is not None


async def test_a_plan_is_refused_until_the_candidate_of_the_one_before_is_live(plan):
    store = await with_prompts(InMemoryLightningStore())
    promotion = await Promotion.create(store, plan())
    shown = Decision("promote", 0.1, 0.2, 60, {}, "shown")
    await promotion.acquire()
    await promotion.renew(decision=shown._asdict())
    await promotion.release()  # as a process does that is killed before the candidate is live
    with pytest.raises(ConfigError, match="has decided and is not over"):
        await Promotion.create(store, next_plan(plan))
    await promotion.apply()
    await Promotion.create(store, next_plan(plan))


async def test_a_plan_is_accepted_after_one_whose_champion_was_replaced(plan):
    store = await with_prompts(InMemoryLightningStore())
    promotion = await Promotion.create(store, plan())
    await (await LivePointer.read(store, "booking")).point_to(store, "night/v2", "by hand")
    with pytest.raises(ConfigError, match="plan again"):
        await promotion.decide(Decision("promote", 0.1, 0.2, 60, {}, "shown"))
    await promotion.release()
    again = plan(champion="night/v2", champion_version=1)
    assert (await Promotion.create(store, again)).decision is None


async def test_a_process_that_works_on_a_promotion_keeps_the_next_plan_out(plan, monkeypatch):
    monkeypatch.setattr(promotions.psutil, "pid_exists", lambda pid: True)
    store = await with_prompts(InMemoryLightningStore())
    promotion = await Promotion.create(store, plan())
    await promotion.acquire()
    await promotion.decide(Decision("promote", 0.1, 0.2, 60, {}, "shown"))
    with pytest.raises(ConfigError, match="another process works on"):
        await Promotion.create(store, next_plan(plan))
    await promotion.release()
    made = (Promotion.create(store, next_plan(plan)) for _ in range(2))
    both = await asyncio.gather(*made, return_exceptions=True)
    assert [isinstance(one, ConfigError) for one in both].count(True) == 1


async def test_a_process_that_is_killed_as_it_plans_loses_no_promotion(plan):
    for calls in range(1, 20):
        store = await with_prompts(InMemoryLightningStore())
        first = await Promotion.create(store, plan())
        await first.decide(Decision("promote", 0.1, 0.2, 60, {}, "shown"))
        await first.release()
        try:
            await Promotion.create(intercept(store, Kill(calls)), next_plan(plan))
        except Killed:
            second = await Promotion.create(store, next_plan(plan))
        else:
            break
        assert (await Promotion.open(store, "booking")).digest == second.digest
        kept = await Promotion.open(store, label_of("booking", first.digest))
        assert kept.decision == first.decision
    assert calls > 3


async def test_a_second_process_is_refused_and_a_lost_one_cannot_write(plan, monkeypatch):
    monkeypatch.setattr(promotions.psutil, "pid_exists", lambda pid: True)
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    first, second = [await Promotion.open(store, "booking") for _ in range(2)]
    await first.acquire()
    with pytest.raises(ConfigError, match="another process has taken"):
        await second.acquire()  # it read before the first one wrote
    late = await Promotion.open(store, "booking")
    with pytest.raises(ConfigError, match="another process works on"):
        await late.acquire()
    monkeypatch.setattr(promotions.time, "time", lambda: 4e9)  # the lease is over
    await late.acquire()
    with pytest.raises(ConfigError, match="another process has taken"):
        await first.renew(pairs=8)


async def test_of_two_processes_at_once_one_decides(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    async with runner(store, better):
        both = await asyncio.gather(decide(store), decide(store), return_exceptions=True)
    failed = [one for one in both if isinstance(one, Exception)]
    assert len(failed) == 1
    assert (await LivePointer.read(store, "booking")).version == 1


async def test_a_champion_that_was_replaced_meanwhile_is_not_overwritten(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    await (await LivePointer.read(store, "booking")).point_to(store, "night/v0", "by hand")
    async with runner(store, better):
        with pytest.RaisesGroup(
            pytest.RaisesExc(ConfigError, match="was changed since the plan was made")
        ):
            await decide(store)
    assert (await LivePointer.read(store, "booking")).resources_id == "night/v0"


async def test_roll_back_and_forth():
    store = await with_prompts(InMemoryLightningStore())
    empty = await LivePointer.read(store, "booking")
    with pytest.raises(InvalidArgumentError, match="nothing else was live"):
        await empty.roll_back(store, "why")
    first = await empty.point_to(store, "night/v0", "the first")
    second = await first.point_to(store, "night/v1", "better")
    with pytest.raises(ConfigError, match="was changed meanwhile"):
        await first.point_to(store, "night/v1", "too late")
    back = await second.roll_back(store, "worse on Monday")
    assert (back.resources_id, back.version) == ("night/v0", 3)
    assert [one["why"] for one in back.history] == ["the first", "better", "worse on Monday"]


async def test_what_was_rolled_back_does_not_come_back():
    store = await with_prompts(InMemoryLightningStore())
    live = await LivePointer.read(store, "booking")
    for resources_id in ("night/v0", "night/v1"):
        live = await live.point_to(store, resources_id, "better")
    live = await live.roll_back(store, "worse")
    with pytest.raises(InvalidArgumentError, match="as live:booking before night/v0"):
        await live.roll_back(store, "worse again")
    live = await live.point_to(store, "night/v0", "by hand")
    with pytest.raises(InvalidArgumentError, match="nothing else was live"):
        await live.roll_back(store, "worse again")


async def test_a_second_roll_back_leads_further_back():
    store = await with_prompts(InMemoryLightningStore())
    names = ["night/v0", "night/v1", "night/v2", "night/v3"]
    for name in names[2:]:
        prompt = PromptTemplate(template=name, engine="f-string")
        await store.update_resources(name, {"prompt": prompt})
    live = await LivePointer.read(store, "booking")
    for resources_id in names[:3]:
        live = await live.point_to(store, resources_id, "better")
    live = await live.roll_back(store, "worse")
    live = await live.try_out(store, Trial("booking", "t", "night/v1", "night/v3", 0.5))
    live = await live.roll_back(store, "the trial is worse")
    assert (live.resources_id, live.trial) == ("night/v1", None)
    live = await live.point_to(store, "night/v3", "better")
    backs: list[str | None] = []
    for _ in range(2):
        live = await (await LivePointer.read(store, "booking")).roll_back(store, "worse")
        backs.append(live.resources_id)
    assert backs == ["night/v1", "night/v0"]
    served = await store.get_resources_by_id("live:booking")
    assert served is not None
    assert served.resources["prompt"].template == "night/v0"  # pyright: ignore


async def test_a_store_without_compare_and_set_is_refused(plan):
    class Old(InMemoryLightningStore):
        @property
        def capabilities(self) -> Any:
            return {}

    with pytest.raises(ConfigError, match="cannot compare and set"):
        await Promotion.create(Old(), plan())


async def test_the_tasks_of_a_search_are_found(plan):
    store = await with_prompts(InMemoryLightningStore())
    run = StoredRun(store, "night")
    await run.enqueue([], batch="x")
    await store.enqueue_rollout(TASKS[0], mode="val", metadata={"run": "night"})
    labels = {"metadata": {"run": "other"}, "resources_id": "night/v0"}
    await store.enqueue_rollout(TASKS[1], mode="train", **labels)
    await store.enqueue_rollout(TASKS[2], mode="test", metadata={"run": "night"})
    assert await used_tasks(store, "night/v1") == {plan().tasks[0]}


async def test_a_plan_that_was_changed_is_refused(plan):
    store = await with_prompts(InMemoryLightningStore())
    await Promotion.create(store, plan())
    stored = await store.get_resources_by_id("promotion:booking")
    assert stored is not None
    state = stored.resources["promotion"].state  # pyright: ignore
    state["plan"]["alpha"] = 0.025
    await store.update_resources("promotion:booking", {"promotion": Checkpoint(state=state)})
    with pytest.raises(ConfigError, match="was changed after it was made"):
        await Promotion.open(store, "booking")


@pytest.mark.parametrize(
    "options",
    [
        {"candidate": "night/v0"},
        {"reward_range": (1, 0)},
        {"reward_range": (0, math.inf)},
        {"reward_range": (-math.inf, 1)},
        {"reward_range": (-1e308, 1e308)},
        {"deadline": math.inf},
        {"max_cost": math.inf, "price": (1, 1)},
        {"max_cost": 1.0, "price": (math.inf, 1)},
        {"tasks": ["a", "a"]},
        {"alpha": 0.07},
        {"min_gain": 1.0},
        {"guardrails": [{"path": "country", "margin": 0.1}]},
        {"guardrails": [{"path": "input.country", "margin": 0.1}]},
        {"guardrails": [{"path": "reward.a", "margin": 1.0}]},
        {"guardrails": [{"path": "reward.a", "margin": 0.1}, {"path": "reward.a", "margin": 0.2}]},
        {"wanted_gain": 1.0},
        {"max_cost": 1.0},
        {"max_cost": 1.0, "price": (-1, 0)},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan, options):
    with pytest.raises(ValidationError):
        plan(**options)


def test_guardrails_are_read():
    assert Guardrail.of("input.a.b:0.1") == Guardrail(path="input.a.b", margin=0.1)
    for text in ("input.a", "a:0.1", "input.a:x"):
        with pytest.raises(InvalidArgumentError, match="is not a guardrail"):
            Guardrail.of(text)


def test_the_bound_grows_with_the_evidence():
    assert gain_at_least([], 0.05) == pytest.approx(-1.0, abs=1e-6)
    bounds = [gain_at_least([0.5] * count, 0.05) for count in (5, 20, 80)]
    assert bounds == sorted(bounds)
    assert 0 < bounds[-1] < 0.5
