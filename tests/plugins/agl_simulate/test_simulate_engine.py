"""The simulation beside what can be computed by hand and by queueing theory."""

import random
import time

import pytest

from agl_core.errors import InvalidArgumentError
from agl_simulate import Cluster, Profile, Workload, advise, simulate

ROLLOUT = Profile((1.0, 2.0, 0.5))


def test_one_runner_works_through_batches_and_waits_for_updates():
    workload = Workload([ROLLOUT], turnarounds=[0.25], updates=[10.0])
    found = simulate(workload, Cluster(runners=1, batch=4), rollouts=12)
    assert found.seconds == pytest.approx(3 * (4 * 3.5 + 3 * 0.25 + 10.0))
    assert (found.rollouts, found.attempts, found.calls) == (12, 12, 12)
    assert found.trainer_busy == pytest.approx(30.0 / found.seconds)
    assert found.runners_busy == pytest.approx(12 * 3.5 / found.seconds)
    assert found.servers_idle == pytest.approx(1 - 12 * 2.0 / found.seconds)
    assert found.servers_busy is None
    assert found.staleness == 0
    assert found.longest_queue == 4
    assert found.wait_mean == pytest.approx((0 + 1 + 2 + 3) * 3.75 / 4)


@pytest.mark.parametrize(
    ("update", "seconds"),
    # Either the trainer never waits after the first batch, or the runners never do.
    [(5.0, 3.5 + 6 * 5.0), (2.0, 6 * 3.5 + 2.0)],
)
def test_overlap_hides_the_shorter_of_batch_and_update(update, seconds):
    workload = Workload([ROLLOUT], updates=[update])
    found = simulate(workload, Cluster(runners=8, batch=8, mode="overlap"), rollouts=48)
    assert found.seconds == pytest.approx(seconds)
    assert found.staleness == pytest.approx(5 / 6)


def test_calls_beyond_the_limit_share_the_servers():
    workload = Workload([Profile((0.0, 1.0, 0.0))], server_limit=2)
    found = simulate(workload, Cluster(runners=6, mode="open"), rollouts=60)
    assert found.seconds == pytest.approx(30.0)
    assert found.servers_busy == pytest.approx(1.0)
    found = simulate(workload, Cluster(runners=6, servers=3, mode="open"), rollouts=60)
    assert found.seconds == pytest.approx(10.0)


def test_a_call_that_joins_slows_down_the_others():
    # Alone for one second, then two calls at half speed.
    workload = Workload([Profile((0.0, 2.0, 0.0))], server_limit=1)
    arriving = Cluster(runners=2, mode="open", store_limit=1.0)  # claims at 1 s and 2 s
    found = simulate(workload, arriving, rollouts=2)
    assert found.seconds == pytest.approx(5.0)
    assert found.servers_idle == pytest.approx(1 / 5)


def test_limits_of_proxy_and_store_bound_the_throughput():
    workload = Workload([Profile((0.1, 0.2, 0.1, 0.2, 0.1))])
    found = simulate(workload, Cluster(64, mode="open", proxy_limit=20.0), rollouts=2000)
    assert found.rollouts_per_second == pytest.approx(10.0, rel=0.02)
    assert found.proxy_busy == pytest.approx(1.0, abs=0.02)
    found = simulate(workload, Cluster(64, mode="open", store_limit=5.0), rollouts=1000)
    assert found.rollouts_per_second == pytest.approx(5.0, rel=0.02)
    assert found.store_busy == pytest.approx(1.0, abs=0.02)


def test_failed_attempts_are_tried_again():
    failing = Workload([Profile((1.0,), failed=True)], max_attempts=3)
    found = simulate(failing, Cluster(runners=4), rollouts=20)
    assert (found.rollouts, found.attempts, found.failed) == (20, 60, 20)
    half = Workload([Profile((1.0,)), Profile((1.0,), failed=True)], max_attempts=2)
    found = simulate(half, Cluster(runners=4), rollouts=4000)
    assert found.failed / 4000 == pytest.approx(0.25, abs=0.03)
    assert found.attempts / 4000 == pytest.approx(1.5, abs=0.05)


def test_arrivals_wait_as_in_a_queue_with_one_server():
    # M/M/1: the mean wait is rho / (1 - rho) services.
    rng = random.Random(5)
    workload = Workload([Profile((rng.expovariate(1.0),)) for _ in range(20_000)])
    cluster = Cluster(runners=1, mode="open", arrivals_per_second=0.5)
    found = simulate(workload, cluster, rollouts=60_000)
    assert found.wait_mean == pytest.approx(1.0, rel=0.1)
    assert found.runners_busy == pytest.approx(0.5, rel=0.05)


def test_the_cost_is_that_of_all_hours():
    workload = Workload([Profile((3600.0,))])
    prices = {"runner": 0.5, "server": 2.0, "trainer": 4.0}
    found = simulate(workload, Cluster(2, servers=3, mode="open", prices=prices), rollouts=4)
    assert found.cost == pytest.approx(2 * (2 * 0.5 + 3 * 2.0 + 4.0))


def test_a_seed_makes_it_reproducible_and_progress_counts_all():
    rng = random.Random(1)
    workload = Workload([Profile((rng.random(), rng.random(), 0.1)) for _ in range(50)])
    seen = []
    one = simulate(workload, Cluster(10, batch=64), rollouts=9000, seed=3, progress=seen.append)
    assert one == simulate(workload, Cluster(10, batch=64), rollouts=9000, seed=3)
    assert one != simulate(workload, Cluster(10, batch=64), rollouts=9000, seed=4)
    assert sum(seen) == 9000
    assert len(seen) > 1


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(InvalidArgumentError, match="no attempts"):
        simulate(Workload([]), Cluster(1), rollouts=1)
    with pytest.raises(InvalidArgumentError, match="runners must be at least 1, not 0"):
        simulate(Workload([ROLLOUT]), Cluster(0), rollouts=1)
    with pytest.raises(InvalidArgumentError, match="begin and end with the agent"):
        Profile((1.0, 2.0))


# -- advice ----------------------------------------------------------------------------------------


def test_advice_finds_where_the_servers_saturate():
    # Half of the time in calls, at most 32 at a time: 64 runners fill the server in the mean.
    workload = Workload([Profile((1.0, 1.0, 0.0)), Profile((0.5, 0.5, 0.0))], server_limit=32)
    found = advise(workload, Cluster(runners=128, mode="open"), rollouts=20_000)
    assert found.bottleneck == "the model servers"
    assert found.saturates_at in (64, 80, 96)
    assert found.sentences[0] == (
        f"The model servers saturate at {found.saturates_at} runners; more add nothing."
    )
    assert any(sentence.startswith("2 model servers would give") for sentence in found.sentences)
    few = advise(workload, Cluster(runners=8, mode="open"), rollouts=20_000)
    assert (few.bottleneck, few.saturates_at) == ("the runners", None)


def test_advice_finds_the_gain_of_overlap_and_larger_batches():
    workload = Workload([ROLLOUT], updates=[3.5], most_calls=8)
    found = advise(workload, Cluster(runners=8, batch=8), rollouts=1000)
    text = " ".join(found.sentences)
    assert "Overlap (one step off) would give" in text
    assert "The model servers were never full in the record, with up to 8 calls at a time" in text


@pytest.mark.slow
@pytest.mark.timing
def test_a_million_rollouts_of_a_thousand_runners_take_less_than_a_minute():
    rng = random.Random(1)
    profiles = [
        Profile((0.5, rng.expovariate(0.5), rng.random(), rng.expovariate(0.5), 0.1))
        for _ in range(500)
    ]
    workload = Workload(profiles, turnarounds=[0.01], updates=[5.0], server_limit=64)
    began = time.process_time()
    cluster = Cluster(runners=1000, servers=8, mode="overlap", batch=2048)
    found = simulate(workload, cluster, rollouts=1_000_000)
    took = time.process_time() - began
    assert found.rollouts == 1_000_000
    print(f"\n1,000,000 rollouts with {found.calls:,} calls in {took:.1f} s of processor time")
    assert took < 60
