"""Choice of a backend: fewest calls in flight, stickiness, ejection, limits, pauses, fairness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agl_core import waits
from agl_proxy_direct.backends import Backend, parse_model_list
from agl_proxy_direct.balancer import Balancer, Member
from agl_proxy_direct.errors import CallError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def backends(*hosts: str, model: str = "q", **params: Any) -> tuple[Backend, ...]:
    return parse_model_list(
        [
            {
                "model_name": model,
                "litellm_params": {"model": "m", "api_base": f"http://{host}", **params},
            }
            for host in hosts
        ]
    )


def host_of(member: Member) -> str:
    return member.backend.api_base.split("/")[2]


async def take(balancer: Balancer, rollout: str = "", without: Any = ()) -> Member:
    return await asyncio.wait_for(balancer.acquire("q", rollout, without), 5)


async def test_the_least_busy_backend_takes_a_call():
    balancer = Balancer(backends("a", "b", "c"))
    taken = [host_of(await take(balancer)) for _ in range(6)]
    assert sorted(taken[:3]) == sorted(taken[3:]) == ["a", "b", "c"]


async def test_the_log_says_what_calls_wait_for(monkeypatch, caplog):
    monkeypatch.setattr(waits, "SILENT_SECONDS", 0.0)
    caplog.set_level("INFO")
    balancer = Balancer(backends("a", max_parallel_requests=1))
    member = await take(balancer)
    waiting = [asyncio.ensure_future(take(balancer)) for _ in range(2)]
    await until(lambda: "Waiting" in caplog.text)
    assert "Waiting for a free backend of model 'q': 2 calls" in caplog.text
    for _ in range(2):
        balancer.release(member, failed=False)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    balancer.release(member, failed=False)
    assert caplog.text.count("Waiting") == 1  # for both
    balancer = Balancer(backends("a"))
    balancer.pause()
    paused = asyncio.ensure_future(take(balancer))
    await until(lambda: "the end of a pause of the proxy: 1 calls of model 'q'" in caplog.text)
    balancer.resume()
    await paused


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_a_rollout_stays_where_it_was_unless_that_fails():
    balancer = Balancer(backends("a", "b"))
    first = await take(balancer, "r1")
    for _ in range(4):
        assert await take(balancer, "r1") is first
    moved = await take(balancer, "r1", [first])
    assert moved is not first
    assert await take(balancer, "r1") is moved


async def test_a_backend_that_keeps_failing_is_left_alone_for_longer_and_longer():
    clock = Clock()
    balancer = Balancer(backends("a", "b"), clock=clock)
    bad = next(m for m in balancer.members() if host_of(m) == "a")

    async def fail() -> None:
        member = await take(balancer, without=[m for m in balancer.members() if m is not bad])
        assert member is bad
        balancer.release(member, failed=True)

    async def open_to(host: str) -> bool:
        taken = [await take(balancer) for _ in range(4)]
        for member in taken:
            balancer.release(member, failed=None)
        return host in {host_of(member) for member in taken}

    for _ in range(3):
        assert await open_to("a")
        await fail()
    assert not await open_to("a")
    clock.now += 1.1
    assert await open_to("a")
    await fail()
    clock.now += 1.1
    assert not await open_to("a"), "the second time it is longer"
    clock.now += 1.0
    assert await open_to("a")
    member = await take(balancer, without=[m for m in balancer.members() if m is not bad])
    balancer.release(member, failed=False)
    assert bad.failures == 0


async def test_calls_continue_with_every_backend_ejected():
    balancer = Balancer(backends("a"))
    for _ in range(5):
        balancer.release(await take(balancer), failed=True)
    assert host_of(await take(balancer)) == "a"


async def test_waiting_calls_are_served_in_turns_of_rollouts():
    balancer = Balancer(backends("a", max_parallel_requests=1))
    held = await take(balancer)
    order: list[str] = []

    async def one(rollout: str) -> None:
        member = await balancer.acquire("q", rollout)
        order.append(rollout)
        await asyncio.sleep(0)
        balancer.release(member, failed=False)

    greedy = [asyncio.ensure_future(one("greedy")) for _ in range(5)]
    await asyncio.sleep(0)
    modest = asyncio.ensure_future(one("modest"))
    await asyncio.sleep(0)
    assert balancer.waiting() == 6
    balancer.release(held, failed=False)
    await asyncio.wait_for(asyncio.gather(*greedy, modest), 5)
    assert order.index("modest") == 1
    assert balancer.in_flight == balancer.waiting() == 0


async def test_limits_hold_and_no_rollout_starves():
    balancer = Balancer(backends("a", "b", max_parallel_requests=2))
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        member = await balancer.acquire("q", f"r{number % 7}")
        most = max(most, balancer.in_flight)
        assert member.in_flight <= 2
        await asyncio.sleep(0.001)
        balancer.release(member, failed=number % 5 == 0)

    await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(200))), 20)
    assert most == 4
    assert balancer.in_flight == 0


async def test_a_cancelled_call_passes_its_turn_to_the_next():
    balancer = Balancer(backends("a", max_parallel_requests=1))
    held = await take(balancer)
    first = asyncio.ensure_future(balancer.acquire("q", "r1"))
    gone = asyncio.ensure_future(balancer.acquire("q", "r1"))
    last = asyncio.ensure_future(balancer.acquire("q", "r2"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    balancer.release(held, failed=False)
    first.cancel()  # a cancelled call does not use its turn
    member = await asyncio.wait_for(last, 5)
    balancer.release(member, failed=False)
    assert (balancer.waiting(), balancer.in_flight) == (0, 0)
    assert await take(balancer) is member


@pytest.mark.parametrize("paused", [True, False])
async def test_waiting_ends_after_the_queue_timeout(paused: bool):
    balancer = Balancer(backends("a", max_parallel_requests=1), queue_timeout=0.05)
    if paused:
        balancer.pause()
    else:
        await take(balancer)
    with pytest.raises(CallError, match="is paused" if paused else "was not free") as caught:
        await balancer.acquire("q", "r1")
    assert (caught.value.status, caught.value.code) == (503, "queue_timeout")
    assert balancer.waiting() == 0


async def test_a_pause_holds_new_calls_until_the_end():
    balancer = Balancer(backends("a"))
    flying = await take(balancer)
    balancer.pause()
    calls = [asyncio.ensure_future(balancer.acquire("q", f"r{n}")) for n in range(3)]
    await asyncio.sleep(0)
    assert (balancer.waiting(), balancer.in_flight) == (3, 1)
    idle = asyncio.ensure_future(balancer.wait_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    balancer.release(flying, failed=False)
    await asyncio.wait_for(idle, 5)
    assert balancer.in_flight == 0
    balancer.resume()
    assert len(await asyncio.wait_for(asyncio.gather(*calls), 5)) == 3


async def test_an_update_keeps_those_that_stay_and_lets_the_others_finish():
    balancer = Balancer(backends("a", "b"))
    taken = {host_of(m): m for m in [await take(balancer), await take(balancer)]}
    balancer.set_version("v2")
    balancer.update(backends("b", "c"))
    members = {host_of(m): m for m in balancer.members()}
    assert members["b"] is taken["b"] and members["b"].in_flight == 1
    assert members["c"].version == "v2"
    balancer.update([*backends("b", "c"), *backends("d", model="new")])
    assert {m.version for m in balancer.members()} == {"v2"}
    balancer.update(backends("b", "c"))
    assert host_of(await take(balancer)) == "c"
    balancer.release(taken["a"], failed=False)
    balancer.release(taken["b"], failed=False)
    assert balancer.in_flight == 1


def test_a_version_of_all_models_is_that_of_one_that_is_away():
    balancer = Balancer([*backends("a"), *backends("d", model="new")])
    balancer.set_version("old", "new")
    balancer.update(backends("a"))
    balancer.set_version("v2")
    balancer.update([*backends("a"), *backends("d", model="new")])
    assert {m.version for m in balancer.members()} == {"v2"}


async def test_waiting_calls_use_an_update():
    balancer = Balancer(backends("a", max_parallel_requests=1))
    await take(balancer)
    lucky = asyncio.ensure_future(balancer.acquire("q", "r1"))
    await asyncio.sleep(0)
    balancer.update(backends("a", "b", max_parallel_requests=1))
    assert host_of(await asyncio.wait_for(lucky, 5)) == "b"
    orphan = asyncio.ensure_future(balancer.acquire("q", "r1"))
    await asyncio.sleep(0)
    balancer.update(backends("a", model="other"))
    with pytest.raises(CallError, match="served: other") as caught:
        await asyncio.wait_for(orphan, 5)
    assert caught.value.status == 404


async def test_backends_of_any_model_take_the_models_without_their_own():
    balancer = Balancer([*backends("a"), *backends("b", model="*")])
    assert host_of(await take(balancer)) == "a"
    other = await asyncio.wait_for(balancer.acquire("other", ""), 5)
    assert host_of(other) == "b"
    assert (balancer.models, balancer.count_backends("other")) == (["q"], 1)


def waiting(balancer: Balancer, count: int, rollout: str = "r1") -> list[asyncio.Task[Member]]:
    return [asyncio.create_task(balancer.acquire("q", rollout)) for _ in range(count)]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_calls_that_are_cancelled_at_once_take_no_turn_and_lose_none():
    """As an abort of all calls does: the awaited futures are done before their tasks run."""
    balancer = Balancer(backends("a", max_parallel_requests=1))
    held = await take(balancer)
    first, second, third = waiting(balancer, 3)
    await turns()
    first.cancel()
    balancer.release(held, failed=None)
    assert await asyncio.wait_for(second, 5) is held
    with pytest.raises(asyncio.CancelledError):
        await first
    balancer.release(held, failed=None)
    assert await asyncio.wait_for(third, 5) is held


async def test_a_call_that_waits_for_another_backend_blocks_nobody():
    balancer = Balancer(backends("a", "b", max_parallel_requests=1))
    held = [await take(balancer), await take(balancer)]
    tried, busy = held
    stuck = asyncio.create_task(balancer.acquire("q", "r1", [tried]))
    (other,) = waiting(balancer, 1, "r2")
    await turns()
    balancer.release(tried, failed=None)  # wakes the call that has tried it
    assert await asyncio.wait_for(other, 5) is tried
    balancer.release(tried, failed=None)
    assert await take(balancer, "r3") is tried, "a new call need not wait behind it"
    assert not stuck.done()
    balancer.release(busy, failed=None)
    assert await asyncio.wait_for(stuck, 5) is busy


async def test_two_calls_that_cannot_use_what_is_free_do_not_wake_each_other_for_ever():
    balancer = Balancer(backends("a", "b", max_parallel_requests=1))
    tried, busy = await take(balancer), await take(balancer)
    stuck = [asyncio.create_task(balancer.acquire("q", f"r{i}", [tried])) for i in range(2)]
    await turns()
    balancer.release(tried, failed=None)
    await asyncio.wait_for(turns(50), 5)
    assert balancer.waiting() == 2
    for _ in stuck:
        balancer.release(busy, failed=None)
        await turns()
    assert [await asyncio.wait_for(task, 5) for task in stuck] == [busy, busy]


async def test_a_model_without_backends_is_answered_by_those_of_any_model():
    balancer = Balancer(backends("a"))
    balancer.pause()
    (task,) = waiting(balancer, 1)
    await turns()
    (any_model,) = backends("b", model="*")
    balancer.update([any_model])
    balancer.resume()
    assert host_of(await asyncio.wait_for(task, 5)) == "b"
    assert host_of(await take(balancer)) == "b"


async def test_equal_entries_stay_members_of_their_own():
    twice = backends("a", "a")
    balancer = Balancer(twice)
    for _ in range(2):
        balancer.update(twice)
    assert len({id(member) for member in balancer.members()}) == 2
