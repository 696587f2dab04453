"""The limit of model servers, from the times of calls."""

import random
from heapq import heapify, heapreplace

import pytest

from agl_simulate.limit import Calls


def shared(rng, limit, counts):
    """Simulate calls that share a server, in groups that begin together."""
    calls, begin = [], 0.0
    for count in counts:
        left = {n: rng.uniform(0.5, 1.5) for n in range(count)}
        now = begin
        while left:
            slowdown = max(1.0, len(left) / limit)
            shortest = min(left, key=left.__getitem__)
            passed = left[shortest]
            now += passed * slowdown
            calls.append((begin, now))
            left = {n: amount - passed for n, amount in left.items() if n != shortest}
        begin = now + 0.1
    return calls


def in_turn(rng, limit, runners, count):
    """Simulate runners whose calls wait until one of the server's places is free."""
    places = [0.0] * limit
    free = [0.0] * runners
    heapify(free)
    calls = []
    for _ in range(count):
        begin = free[0] + rng.uniform(0.0, 0.8)
        at = max(begin, min(places))
        places[places.index(min(places))] = end = at + rng.uniform(0.5, 1.5)
        heapreplace(free, end)
        calls.append((begin, end))
    return calls


def check(calls, limit):
    """Check what predictions depend on most: the calls per second of a full server."""
    found = calls.limit()
    assert found is not None
    lengths = calls.lengths(found)
    assert found / (sum(lengths) / len(lengths)) == pytest.approx(limit, rel=0.15)
    assert found == pytest.approx(limit, rel=0.5)


@pytest.mark.parametrize("limit", [2, 6, 20, 130])
def test_the_capacity_of_servers_that_share_their_speed(limit):
    rng = random.Random(limit)
    check(Calls(shared(rng, limit, [rng.randint(1, 3 * limit) for _ in range(30)])), limit)


@pytest.mark.parametrize("limit", [3, 10])
def test_the_capacity_of_servers_whose_calls_wait_in_turn(limit):
    rng = random.Random(limit)
    calls, begin = [], 0.0
    for runners in (limit, 4 * limit, 2 * limit, 3 * limit):
        batch = in_turn(rng, limit, runners, 30 * limit)
        calls += [(begin + first, begin + last) for first, last in batch]
        begin = calls[-1][1] + 5.0
    check(Calls(calls), limit)


def test_servers_that_are_never_full_have_no_known_limit():
    for seed in range(20):
        rng = random.Random(seed)
        calls = Calls(shared(rng, 1000, [rng.randint(1, 12) for _ in range(20)]))
        assert calls.limit() is None
        assert calls.most <= 12


def overlapping(rng, count):
    """Simulate calls whose lengths do not depend on how many there are."""
    begins = [rng.uniform(0.0, count / 4) for _ in range(count)]
    return [(begin, begin + rng.lognormvariate(0.0, 0.5)) for begin in begins]


def test_calls_that_differ_by_themselves_are_no_evidence():
    found = [Calls(overlapping(random.Random(seed), 40)).limit() for seed in range(100)]
    assert found.count(None) >= 97


def test_a_limit_is_found_from_a_few_groups():
    """One parameter costs half of a logarithm in BIC: twice of it misses a third of these."""
    found = 0
    for seed in range(100):
        rng = random.Random(seed)
        found += Calls(shared(rng, 3, [rng.randint(1, 9) for _ in range(4)])).limit() is not None
    assert found >= 75


def test_calls_of_no_length_say_nothing():
    some = [(0.3, 1.1), (2.2, 3.0), (2.2, 3.3), (2.7, 4.1), (2.8, 3.7)]
    assert Calls(some).limit() is None
    assert Calls([*some, *((5.0 + n, 5.0 + n) for n in range(1000))]).limit() is None


def test_few_calls_are_no_evidence():
    assert Calls([]).limit() is None
    assert Calls([(0.0, 1.0)]).limit() is None
    assert Calls([(0.0, 1.0), (2.0, 3.0)]).limit() is None
