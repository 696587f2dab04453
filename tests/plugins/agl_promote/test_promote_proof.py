"""What the tests of promotions promise, in simulated worlds; the whole tables are marked slow."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agl_promote import Episode, Evidence, LivePlan, Pair, Plan, gain_at_least
from tests.benchmark.bench_promotion import (
    GAIN_WORLDS,
    NULL_WORLDS,
    RARE,
    anytime,
    planned,
    rates,
)
from tests.benchmark.bench_selection import shares

WORLDS = list(NULL_WORLDS)
ORDINARY = [world for world in WORLDS if world != RARE]


def plan(pairs: int, **options) -> Plan:
    return Plan(
        **{
            "name": "p",
            "champion": "a",
            "candidate": "b",
            "tasks": [str(index) for index in range(pairs)],
            "reward_range": (0, 1),
            **options,
        }
    )


@pytest.mark.parametrize("test", ["anytime", "planned"])
def test_the_arrays_decide_as_the_evidence_does(test):
    rng = np.random.default_rng(5)
    differences = GAIN_WORLDS["hard or easy +.1"](rng, (60, 120), 1)
    promoted, used = {"anytime": anytime, "planned": planned}[test](differences)
    for row, ever, pairs in zip(differences, promoted, used, strict=True):
        evidence = Evidence(plan(120, test=test))
        for difference in row:
            if (
                evidence.add(
                    Pair(0.0, 0.0)._replace(
                        champion=max(0.0, -difference), candidate=max(0.0, difference)
                    )
                ).kind
                != "undecided"
            ):
                break
        assert (evidence.decision.kind == "promote") == ever
        if ever:
            assert evidence.decision.pairs == pairs
            assert evidence.decision.at_least > 0


# Three standard errors of 2,000 runs above the bar of the whole table.
@pytest.mark.parametrize("world", WORLDS)
def test_an_equal_candidate_is_seldom_promoted_at_any_time(world):
    assert rates(NULL_WORLDS[world], anytime, 2000)[0] <= 0.025 + 0.0105


@pytest.mark.parametrize("world", ORDINARY)
def test_an_equal_candidate_is_seldom_promoted_at_planned_looks(world):
    assert rates(NULL_WORLDS[world], planned, 2000)[0] <= 0.055 + 0.0153


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_false_promotions_at_any_time_in_10_000_runs(world):
    assert rates(NULL_WORLDS[world], anytime, 10_000)[0] <= 0.025


@pytest.mark.slow
@pytest.mark.parametrize("world", ORDINARY)
@pytest.mark.parametrize(("pairs", "repeats"), [(12, 1), (24, 8), (48, 2), (100, 4), (300, 1)])
def test_false_promotions_at_planned_looks_in_10_000_runs(world, pairs, repeats):
    assert rates(NULL_WORLDS[world], planned, 10_000, pairs, repeats)[0] <= 0.055


def test_a_gain_of_a_tenth_is_found_in_time():
    power, used = rates(GAIN_WORLDS["hard or easy +.1"], anytime, 4000)
    assert power >= 0.82
    assert used <= 180


def test_a_gain_of_a_fifth_is_found_soon():
    power, used = rates(GAIN_WORLDS["hard or easy +.2"], anytime, 2000)
    assert power >= 0.99
    assert used <= 80


def test_looking_at_a_t_test_after_every_pair_would_fail():
    """The mutation that the bars must catch."""

    def peeking(differences):
        count = np.arange(1, differences.shape[1] + 1)
        mean = differences.cumsum(axis=1) / count
        square = (differences**2).cumsum(axis=1) / count
        error = np.sqrt(np.maximum(square - mean**2, 1e-12) / count)
        ever = ((mean / error > 1.645) & (count >= 10)).any(axis=1)
        return ever, count[-1:].repeat(len(differences))

    assert rates(NULL_WORLDS["hard or easy"], peeking, 1000)[0] > 0.15


@pytest.mark.parametrize("world", ["hard or easy", "other tasks", RARE])
def test_the_anytime_bound_holds_at_every_time(world):
    rng = np.random.default_rng(11)
    rows = NULL_WORLDS[world](rng, (60, 120), 1)
    wrong = sum(
        any(gain_at_least(list(row[:count]), 0.05) > 0 for count in range(15, 121, 15))
        for row in rows
    )
    assert wrong / len(rows) <= 0.05


# -- guardrails ------------------------------------------------------------------------------------


COUNTRIES = ["input.country=de", "input.country=nl"]


def rails(margin: float) -> list[dict]:
    return [{"path": "input.country", "margin": margin}]


def harmful(chance: random.Random) -> Pair:
    """Better on 90 % of the tasks, much worse in one country."""
    country = "nl" if chance.random() < 0.1 else "de"
    champion = float(chance.random() < 0.5)
    candidate = float(chance.random() < (0.2 if country == "nl" else 0.7))
    key = f"input.country={country}"
    return Pair(champion, candidate, {key: (champion, candidate)})


def test_a_candidate_that_harms_a_segment_is_not_promoted():
    guarded = plan(300, test="anytime", guardrails=rails(0.1), segments=COUNTRIES)
    chance, promoted, without = random.Random(2), 0, 0
    for _ in range(60):
        evidence, plain = Evidence(guarded), Evidence(plan(300, test="anytime"))
        for _ in range(300):
            pair = harmful(chance)
            evidence.add(pair)
            plain.add(pair)
        promoted += evidence.decision.kind == "promote"
        without += plain.decision.kind == "promote"
    assert promoted == 0
    assert without > 40


def test_a_segment_without_a_pair_yet_is_not_shown():
    guarded = plan(300, test="anytime", guardrails=rails(0.1), segments=COUNTRIES)
    evidence = Evidence(guarded)
    for _ in range(200):
        evidence.add(Pair(0.0, 1.0, {"input.country=de": (0.0, 1.0)}))
    assert evidence.decision.kind == "undecided"
    assert "not yet: input.country=nl" in evidence.decision.why


def test_a_guardrail_that_is_shown_lets_a_good_candidate_through():
    guarded = plan(300, test="anytime", guardrails=rails(0.3), segments=COUNTRIES)
    evidence = Evidence(guarded)
    for index in range(300):
        key = f"input.country={'de' if index % 2 else 'nl'}"
        evidence.add(Pair(0.0, float(index % 3 > 0), {key: (0.0, float(index % 3 > 0))}))
    assert evidence.decision.kind == "promote"
    assert set(evidence.decision.guardrails) == {"input.country=de", "input.country=nl"}
    assert min(evidence.decision.guardrails.values()) > -0.3


# -- live traffic ----------------------------------------------------------------------------------


def live_plan(**options) -> LivePlan:
    given = {"name": "p", "champion": "a", "candidate": "b", "reward_range": (0, 1), "deadline": 60}
    return LivePlan(**{**given, **options})


def promoted_live(chance: random.Random, gain: float, **options) -> float | None:
    """Return the number of episodes after which a candidate is promoted; None if it never is."""
    plan = live_plan(**options)
    evidence = Evidence(plan)
    while evidence.decision.kind == "undecided":
        is_candidate = chance.random() < plan.share
        evidence.add(Episode(is_candidate, float(chance.random() < 0.6 + gain * is_candidate)))
    return evidence.decision.pairs if evidence.decision.kind == "promote" else None


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_an_equal_candidate_is_seldom_promoted_on_live_traffic(share):
    chance = random.Random(4)
    found = [promoted_live(chance, 0.0, share=share, max_episodes=400) for _ in range(300)]
    assert sum(one is not None for one in found) / 300 <= 0.05


def test_a_gain_of_a_fifth_is_found_on_live_traffic():
    """The design asks for a power of 0.82 after 300 episodes."""
    chance = random.Random(9)
    found = [promoted_live(chance, 0.2, max_episodes=300) for _ in range(200)]
    assert sum(one is not None for one in found) / 200 >= 0.75
    bounds = []
    for _ in range(100):
        evidence = Evidence(live_plan(max_episodes=300))
        for _ in range(300):
            is_candidate = chance.random() < 0.5
            evidence.add(Episode(is_candidate, float(chance.random() < 0.6 + 0.2 * is_candidate)))
        bounds.append(evidence.decision.at_least)
    assert sum(bound > 0.2 for bound in bounds) <= 5  # at most 5 % claim more
    assert sum(bound >= 0 for bound in bounds) >= 75


def test_a_guardrail_on_live_traffic_has_to_be_shown():
    rail = {"path": "input.country=nl", "margin": 0.3}
    chance = random.Random(5)
    guarded, plain = Evidence(live_plan(guardrails=[rail])), Evidence(live_plan())
    for index in range(2000):
        is_candidate = chance.random() < 0.5
        own = index % 10 == 0
        better = -0.6 if own and is_candidate else 0.3 * is_candidate
        reward = float(chance.random() < 0.6 + better)
        episode = Episode(is_candidate, reward, {"input.country=nl": reward} if own else {})
        guarded.add(episode)
        plain.add(episode)
    assert plain.decision.kind == "promote"
    assert guarded.decision.kind == "keep"
    assert "not shown to be kept: input.country=nl" in guarded.decision.why


def test_a_worse_version_is_rolled_back_and_an_equal_one_is_not():
    """The test of the holdback has the old version as its candidate."""
    chance = random.Random(6)
    terms = live_plan(watch=600).of_holdback()
    assert (terms.candidate, terms.share, terms.most) == ("a", 0.1, 600)
    options = {"share": terms.share, "max_episodes": terms.most}
    false = [promoted_live(chance, 0.0, **options) for _ in range(100)]
    found = [promoted_live(chance, 0.4, **options) or 10_000 for _ in range(100)]
    assert sum(one is not None for one in false) <= 5
    assert sorted(found)[50] <= 300


# -- a search, then its winner ---------------------------------------------------------------------


def test_a_search_claims_a_gain_that_its_winner_does_not_have():
    means = shares("equal", 24, 60)
    assert means["replaced"] > 0.8
    assert means["claimed"] > 0.1
    assert means["off"] == pytest.approx(means["excess"], rel=0.4)
    assert means["proved"] <= 0.1
    assert means["promoted"] <= 0.07


def test_the_winner_of_worse_edits_is_not_promoted():
    assert shares("all -.05", 24, 60)["promoted"] == 0.0


@pytest.mark.slow
def test_the_winners_of_a_thousand_searches_among_worse_edits_are_not_promoted():
    assert shares("all -.05", 24, 1000)["promoted"] <= 0.005
