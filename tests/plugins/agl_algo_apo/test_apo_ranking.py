"""Candidates of which the infrastructure lost rollouts are compared on rows that they share."""

from __future__ import annotations

from collections.abc import Mapping

from agl_algo_apo.ranking import rank
from agl_algo_apo.state import Candidate

ROWS = range(16)


def candidate(number: int, rewards: Mapping[int, float]) -> Candidate:
    return Candidate(version=f"v{number}", rewards=dict(rewards))


def order(*candidates: Candidate) -> list[str]:
    return [one.version for one in rank(candidates, ROWS)]


def test_one_easy_row_makes_no_leader():
    good = candidate(1, {row: float(row < 8) for row in ROWS})
    bad = candidate(2, {row: float(row < 4) for row in ROWS})
    lucky = candidate(3, {0: 1.0})
    assert order(good, bad, lucky) == ["v1", "v2", "v3"]
    assert not lucky.beats(good)


def test_hard_rows_that_are_lost_are_no_advantage():
    good = candidate(1, {row: float(row < 12) for row in ROWS})
    worse = candidate(2, {row: float(row < 11) for row in range(12)})
    assert worse.mean(ROWS) > good.mean(ROWS)  # pyright: ignore[reportOperatorIssue]
    assert order(good, worse) == ["v1", "v2"]
    assert not worse.beats(good)


def test_of_equal_candidates_the_newer_one_is_first():
    rewards = dict.fromkeys(ROWS, 0.5)
    assert order(candidate(1, rewards), candidate(2, rewards)) == ["v2", "v1"]


def test_candidates_with_nothing_in_common_are_all_there():
    halves = [candidate(n, dict.fromkeys(range(8 * n, 8 * n + 8), float(n))) for n in (0, 1)]
    assert order(*halves) == ["v0", "v1"]
