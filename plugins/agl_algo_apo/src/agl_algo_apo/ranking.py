"""The order of candidates of which some were not measured on all rows of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agl_algo_apo.state import Candidate

__all__ = ["rank"]

_LEAST_SHARE: Final = 0.5
"""Share of the rows on which candidates are compared at least: a mean over fewer says more about
the rows than about the prompt."""


def rank(candidates: Sequence[Candidate], rows: Sequence[int]) -> list[Candidate]:
    """Return candidates best first, by their mean rewards on rows that all of them have.

    The infrastructure may have lost rollouts, and a mean over other rows is no comparison: one easy
    row that is left would make its candidate the best. Candidates with too few rows in common with
    the others come last, in the order of how many they have.

    Args:
        candidates: Candidates, of which equals with more rows, then earlier ones, are compared
            first.
        rows: Validation rows of the round.
    """
    known = {one.version: set(rows) & one.rewards.keys() for one in candidates}
    fullest = sorted(candidates, key=lambda one: -len(known[one.version]))
    shared = known[fullest[0].version]
    least = max(1.0, _LEAST_SHARE * len(shared))
    compared: list[Candidate] = []
    for one in fullest:
        if len(both := shared & known[one.version]) >= least:
            shared = both
            compared.append(one)
    last = [one for one in fullest if one not in compared]
    compared.sort(key=lambda one: _key(one, sorted(shared)))
    return compared + last


def _key(one: Candidate, rows: Sequence[int]) -> tuple[float, int, int]:
    mean = one.mean(rows)
    assert mean is not None, "it has rewards on these rows"
    # Of equal prompts the newer one stays, so that edits without a visible gain can add up.
    return -mean, one.failures(rows), -one.number
